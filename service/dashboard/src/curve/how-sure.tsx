import type { Curve } from "../api/types";
import { formatDollars, formatPercent, pluralize } from "../parts/format";
import parts from "../parts/parts.module.css";
import type { Option } from "./options";
import css from "./page.module.css";
import { regretOf } from "./regret";
import { describeKnee } from "./summary";

/** What the recommendation can be wrong by: beside the chart, since each line is one sentence. */
export function HowSure({ curve, options, excluded, own }: { curve: Curve; options: readonly Option[]; excluded: ReadonlySet<string>; own: Option | null }) {
  const allowed = options.filter((option) => !excluded.has(option.id));
  const lines = [
    curve.basis === "relative" || own === null ? "" : describeRegret(own, allowed, curve.current !== null, excluded.has(own.id)),
    allowed.length > 1 ? describeKnee(curve) : "",
    describeCalibration(curve),
  ].filter(Boolean);
  if (lines.length === 0) return null;
  return (
    <section className={parts.card} aria-label="How sure">
      <h2>How sure this is</h2>
      <ul className={css.sure}>
        {lines.map((line) => (
          <li key={line}>{line}</li>
        ))}
      </ul>
    </section>
  );
}

function describeRegret(own: Option, allowed: readonly Option[], isRunning: boolean, isExcluded: boolean): string {
  const regret = regretOf(own, allowed);
  const subject = isRunning ? "The present choice" : "The choice";
  if (isExcluded) return `${subject}, ${own.name}, is not 90 % sure to meet these limits.`;
  if (regret === null || regret.amount === 0) return `${subject} is best known: no option that is as fast can cost less, by the ends of the 80 % bands.`;
  return `${subject} costs at most ${formatDollars(regret.amount)} more than the best known option that is as fast, ${regret.rival.name}, by the ends of the 80 % bands.`;
}

function describeCalibration({ calibration }: Curve): string {
  if (!calibration || calibration.forecasts === 0) return "No earlier forecast for this model has ended: the bands are untested.";
  return `Of the last ${pluralize(calibration.forecasts, "forecast")} for this model, ${formatPercent(calibration.coverage)} ended inside their 80 % band.`;
}
