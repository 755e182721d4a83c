import type { Curve } from "../api/types";
import { formatConfig } from "../parts/format";
import parts from "../parts/parts.module.css";
import css from "./page.module.css";

const [ROW, LEFT, WIDTH, RIGHT] = [22, 110, 260, 70];
const LEAST_REACH = 0.02;

/** Where measured iterations lie beside the fitted law: one dot for each option that was timed. */
export function Residuals({ curve }: { curve: Curve }) {
  const rows = residualsOf(curve);
  if (rows.length === 0) return <p className={parts.muted}>Nothing was timed for this job.</p>;
  const spread = curve.laws?.spread ?? 0;
  const reach = Math.max(LEAST_REACH, 2 * spread, ...rows.map((row) => Math.abs(row.error))) * 1.1;
  const x = (error: number) => LEFT + (WIDTH / 2) * (1 + error / reach);
  const height = ROW * rows.length + 8;
  return (
    <svg className={css.residuals} viewBox={`0 0 ${LEFT + WIDTH + RIGHT} ${height}`} role="img" aria-label={`Measured against fitted iteration time: ${rows.map((row) => `${row.name} ${signed(row.error)}`).join(", ")}`}>
      <rect x={x(-spread)} width={x(spread) - x(-spread)} y={0} height={height} data-role="spread" />
      <line x1={x(0)} x2={x(0)} y1={0} y2={height} />
      {rows.map((row, index) => {
        const y = ROW * index + ROW / 2 + 4;
        return (
          <g key={row.name} data-residual={row.error}>
            <text x={LEFT - 8} y={y + 4} textAnchor="end">{row.name}</text>
            <line x1={x(0)} x2={x(row.error)} y1={y} y2={y} data-role="stem" />
            <circle cx={x(row.error)} cy={y} r={4} />
            <text x={LEFT + WIDTH + 8} y={y + 4}>{signed(row.error)}</text>
          </g>
        );
      })}
    </svg>
  );
}

/** Returns by what share measured iterations take longer than the law says. */
export function residualsOf(curve: Curve): { name: string; error: number }[] {
  return curve.points.flatMap((point) =>
    point.measured_step_time === null || !(point.step_time > 0)
      ? []
      : [{ name: formatConfig(point), error: point.measured_step_time / point.step_time - 1 }],
  );
}

const signed = (share: number) => `${share < 0 ? "−" : "+"}${(100 * Math.abs(share)).toFixed(1)} %`;
