import { AxisBottom, AxisLeft } from "@visx/axis";
import { scaleLinear } from "@visx/scale";
import type { Curve, Job } from "../api/types";
import { formatCostTick } from "../curve/chart";
import css from "../curve/chart.module.css";
import { findFront, stepPath } from "../curve/front";
import { configId, optionsOf } from "../curve/options";
import { circle, cross, diamond, square, star } from "../curve/shapes";
import { formatTick, timeTicks, valueTicks } from "../curve/ticks";
import parts from "../parts/parts.module.css";
import { useSize } from "../parts/size";

const HEIGHT = 380;
const DASHES = ["", "8 4", "2 3", "10 3 2 3", "5 2", "1 4"];
const SHAPES = [circle, diamond, square, star, cross, circle];

function whyMissing(curve: Curve | null): string {
  if (curve === null || curve.points.length === 0) return "has no curve yet";
  return curve.basis === "relative" ? "is known only relative to its start" : "has no option within its limits";
}

/** The fronts of several jobs; each has a dash and a sign of its own. */
export function FrontOverlay({ entries }: { entries: { job: Job; curve: Curve | null }[] }) {
  const [frame, { width }] = useSize<HTMLDivElement>();
  const lines = entries.flatMap(({ job, curve }) => {
    if (!curve || curve.basis === "relative") return [];
    // What the job's limits exclude is on no front of its own.
    const options = optionsOf(curve);
    const front = findFront(options.filter((option) => option.point.on_front));
    const chosen = configId(curve.chosen);
    // A job may run on an option that is on no front: it was pinned there, or its noise has drifted since.
    const marks = [...front, ...options.filter((option) => option.id === chosen && !front.includes(option))];
    return front.length ? [{ job, front, marks, chosen, basis: curve.basis }] : [];
  });
  const missing = entries.flatMap(({ job, curve }) => (lines.some((line) => line.job === job) ? [] : [`${job.name} ${whyMissing(curve)}`]));
  if (lines.length === 0) return <div ref={frame} className={parts.muted}>None of these jobs has a front in seconds and dollars: {missing.join("; ")}.</div>;
  const all = lines.flatMap((line) => line.marks);
  const domain = (values: number[]): [number, number] => [Math.min(...values) > 0.4 * Math.max(...values) ? Math.min(...values) * 0.9 : 0, Math.max(...values) * 1.08 || 1];
  const [times, costs] = [domain(all.map((option) => option.time)), domain(all.map((option) => option.cost))];
  const total = Math.max(width, 280);
  const x = scaleLinear<number>({ domain: times, range: [66, total - 20] });
  const y = scaleLinear<number>({ domain: costs, range: [HEIGHT - 46, 12] });
  const costTicks = valueTicks(costs, 6);
  const label = { fontSize: 12, fill: "var(--muted)", textAnchor: "middle" } as const;
  const tick = { fontSize: 12, fill: "var(--muted)" };
  return (
    <div ref={frame}>
      <svg className={css.svg} width={total} height={HEIGHT} role="img" aria-label={`Fronts of ${lines.map((line) => line.job.name).join(", ")}`}>
        <AxisBottom axisClassName={css.axis ?? ""} top={HEIGHT - 46} scale={x} tickValues={timeTicks(times, (total - 86) / 95)} tickFormat={(value) => formatTick(Number(value), times)} label="time to target" labelOffset={10} labelProps={label} tickLabelProps={tick} />
        <AxisLeft axisClassName={css.axis ?? ""} left={66} scale={y} tickValues={costTicks} tickFormat={(value) => formatCostTick(Number(value), costTicks, false)} label="cost to target (USD)" labelOffset={46} labelProps={label} tickLabelProps={tick} />
        {lines.map((line, index) => (
          <g key={line.job.id} data-job={line.job.id}>
            <path className={css.front} strokeDasharray={DASHES[index]} d={stepPath(line.front, x, y)} />
            {line.marks.map((option) => (
              <path
                key={option.id}
                className={css.mark}
                data-role={option.id === line.chosen ? "measured" : "predicted"}
                data-config={option.id}
                d={(SHAPES[index] ?? circle)(option.id === line.chosen ? 7 : 4)}
                transform={`translate(${x(option.time)},${y(option.cost)})`}
              />
            ))}
          </g>
        ))}
      </svg>
      <ul className={css.legend} aria-label="Signs">
        {lines.map((line, index) => (
          <li key={line.job.id}>
            <svg width="44" height="18" viewBox="-22 -9 44 18" aria-hidden="true">
              <path className={css.front} strokeDasharray={DASHES[index]} d="M-20,0H20" />
              <path className={css.mark} data-role="predicted" d={(SHAPES[index] ?? circle)(5)} />
            </svg>
            {line.job.name} · {line.job.id.slice(-8)}
          </li>
        ))}
      </ul>
      {missing.length > 0 && <p data-missing>Not drawn: {missing.join("; ")}.</p>}
      <p className={`${parts.muted} ${parts.small}`}>Large filled signs are the chosen options. {lines.some((line) => line.basis === "remaining") && "A curve of what was left of a job is shorter than one of a whole job."}</p>
    </div>
  );
}
