import { AxisBottom, AxisLeft } from "@visx/axis";
import { scaleLinear } from "@visx/scale";
import type { Forecast } from "../api/types";
import css from "../curve/chart.module.css";
import { valueTicks } from "../curve/ticks";
import { formatCostTick } from "../curve/chart";
import { circle } from "../curve/shapes";
import { formatDollars, pluralize, toNumber } from "../parts/format";
import parts from "../parts/parts.module.css";
import { useSize } from "../parts/size";

const HEIGHT = 240;

/** Forecast costs against what was spent; on the diagonal a forecast was exact. */
export function ForecastScatter({ forecasts }: { forecasts: readonly Forecast[] }) {
  const [frame, { width }] = useSize<HTMLDivElement>();
  const points = forecasts.flatMap((each) => {
    const [low, middle, high] = [each.cost_low, each.cost, each.cost_high].map((money) => toNumber(money?.amount));
    if (each.phase !== "succeeded" || middle == null) return [];
    return [{ id: each.job, name: each.name, low: low ?? middle, middle, high: high ?? middle, spent: Number(each.spent.amount) }];
  });
  if (points.length === 0) return <div ref={frame} className={parts.muted}>No job with a forecast has succeeded yet.</div>;
  const most = Math.max(...points.flatMap((point) => [point.high, point.spent])) * 1.08;
  const right = Math.max(width, 240) - 14;
  const x = scaleLinear<number>({ domain: [0, most], range: [64, right] });
  const y = scaleLinear<number>({ domain: [0, most], range: [HEIGHT - 42, 10] });
  const ticks = valueTicks([0, most], 4);
  const write = (value: number | { valueOf(): number }) => formatCostTick(Number(value), ticks, false);
  return (
    <div ref={frame}>
      <svg className={css.svg} width={right + 14} height={HEIGHT} role="img" aria-label={`Forecast and spent cost of ${pluralize(points.length, "job")}`}>
        <AxisBottom axisClassName={css.axis ?? ""} top={HEIGHT - 42} scale={x} tickValues={ticks} tickFormat={write} label="forecast (USD)" labelOffset={8} labelProps={{ fontSize: 12, fill: "var(--muted)", textAnchor: "middle" }} tickLabelProps={{ fontSize: 11, fill: "var(--muted)" }} />
        <AxisLeft axisClassName={css.axis ?? ""} left={64} scale={y} tickValues={ticks} tickFormat={write} label="spent" labelOffset={44} labelProps={{ fontSize: 12, fill: "var(--muted)", textAnchor: "middle" }} tickLabelProps={{ fontSize: 11, fill: "var(--muted)" }} />
        <path className={css.batch} strokeDasharray="4 3" d={`M${x(0)},${y(0)}L${x(most)},${y(most)}`} />
        {points.map((point) => (
          <g key={point.id}>
            <line className={css.errorBar} x1={x(point.low)} x2={x(point.high)} y1={y(point.spent)} y2={y(point.spent)} />
            <path className={css.mark} data-role="measured" d={circle(4)} transform={`translate(${x(point.middle)},${y(point.spent)})`}>
              <title>{`${point.name}: forecast ${formatDollars(point.middle)}, spent ${formatDollars(point.spent)}`}</title>
            </path>
          </g>
        ))}
      </svg>
    </div>
  );
}
