import type { Decision } from "../api/types";
import { Moment } from "../parts/basics";
import { formatConfig } from "../parts/format";
import parts from "../parts/parts.module.css";
import css from "./page.module.css";

/** Replays how the curve looked at each decision. */
export function History({ decisions, shown, show }: { decisions: readonly Decision[]; shown: number | null; show: (number: number | null) => void }) {
  if (decisions.length < 2) return null;
  const place = shown === null ? decisions.length : decisions.findIndex((decision) => decision.number === shown);
  const decision = decisions[place];
  const words = decision ? `decision ${decision.number}, ${formatConfig(decision.chosen)}` : "now";
  return (
    <section className={parts.card} aria-label="History">
      <h2>How the curve came about</h2>
      <div className={css.history}>
        <input
          type="range"
          min={0}
          max={decisions.length}
          value={place}
          aria-label="Decision"
          aria-valuetext={words}
          onChange={(event) => show(decisions[Number(event.target.value)]?.number ?? null)}
        />
        <p aria-live="polite">
          {decision ? (
            <>
              Decision {decision.number} of {decisions.length}, <Moment at={decision.at} />: {formatConfig(decision.chosen)}. {decision.why}
            </>
          ) : (
            `Now, after ${decisions.length} decisions.`
          )}
        </p>
        {shown !== null && (
          <div>
            <button type="button" className={parts.button} onClick={() => show(null)}>
              Back to now
            </button>
          </div>
        )}
      </div>
    </section>
  );
}
