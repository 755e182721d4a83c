import type { Curve, Job, Probe, Resize } from "../api/types";
import { Facts, Moment } from "../parts/basics";
import { UNKNOWN, formatConfig, formatDollars, formatNumber, formatPercent, formatSeconds } from "../parts/format";
import { Term } from "../parts/glossary";
import parts from "../parts/parts.module.css";
import { DataTable, type Column } from "../parts/table";
import css from "./page.module.css";
import { Residuals } from "./residuals";
import { describeKnee } from "./summary";

/** Where a choice comes from: the sentence, the laws, and what was measured. */
export function Why({ curve, job, isKneeSure }: { curve: Curve; job: Job; isKneeSure: boolean }) {
  const { laws } = curve;
  return (
    <details className={`${parts.card} ${css.why}`} data-section="why">
      <summary>Why this recommendation</summary>
      <div className={parts.stack}>
        <Facts
          facts={[
            ["decided", curve.decision === null ? "not yet: this is a preview" : <span key="d">decision {curve.decision}, <Moment at={curve.decided_at} /></span>],
            ["objective", curve.objective],
            ["sentence", curve.why],
            [<Term key="k" word="knee">knee</Term>, `${describeKnee(curve) || UNKNOWN}${isKneeSure || !curve.knee_bends ? "" : " Both are within what is known."}`],
            ["models from", curve.source],
            ["search", job.search],
            ...(laws
              ? ([
                  [<Term key="t" word="τ">iteration (τ)</Term>, iterationLaw(laws)],
                  ["epochs to target", laws.law],
                  [<Term key="p" word="φ">noise scale (φ)</Term>, laws.noise_scale === null ? UNKNOWN : `${formatNumber(laws.noise_scale)} samples`],
                  ["mean error of τ", formatPercent(laws.mean_relative_error)],
                  ["spread where predicted", formatPercent(laws.spread)],
                ] as [React.ReactNode, React.ReactNode][])
              : []),
            ["calibration", curve.calibration && curve.calibration.forecasts > 0 ? `${formatPercent(curve.calibration.coverage)} of ${curve.calibration.forecasts} earlier forecasts lay inside their 80 % band` : "no earlier forecast of this model has ended"],
          ]}
        />
        <h3>Measured against fitted iteration time</h3>
        <Residuals curve={curve} />
        <h3>Probes</h3>
        <DataTable label="Probes" rows={curve.probes} columns={PROBES} rowKey={(probe) => probe.settled_at + formatConfig(probe)} empty={<p className={parts.muted}>None: {curve.source}.</p>} />
        <h3>Resizes</h3>
        <DataTable label="Resizes" rows={curve.resizes} columns={RESIZES} rowKey={(resize) => String(resize.generation)} empty={<p className={parts.muted}>None.</p>} />
      </div>
    </details>
  );
}

function iterationLaw(laws: NonNullable<Curve["laws"]>): string {
  const workers = laws.growth === "log" ? "log₂K" : "K";
  const ms = (seconds: number) => `${formatNumber(seconds * 1000)} ms`;
  const averaged = laws.averaged.length > 1 ? `; the mean of ${laws.averaged.length} laws, this one the heaviest` : "";
  return `computing ${ms(laws.compute_fixed)} + ${ms(laws.compute_per_sample)}·B/K, synchronising ${ms(laws.sync_fixed)} + ${ms(laws.sync_per_worker)}·${workers}${averaged}`;
}

const PROBES: Column<Probe>[] = [
  { name: "option", value: (p) => formatConfig(p), cell: (p) => formatConfig(p) },
  { name: "noise", head: "γ", value: (p) => p.noise, cell: (p) => formatNumber(p.noise), isNumber: true },
  { name: "computing", value: (p) => p.compute_time, cell: (p) => formatSeconds(p.compute_time), isNumber: true },
  { name: "synchronising", value: (p) => p.sync_time, cell: (p) => formatSeconds(p.sync_time), isNumber: true },
  { name: "iterations", value: (p) => p.iterations, cell: (p) => p.iterations, isNumber: true },
  { name: "took", value: (p) => p.seconds, cell: (p) => formatSeconds(p.seconds), isNumber: true },
  { name: "cost", value: (p) => Number(p.cost), cell: (p) => formatDollars(p.cost), isNumber: true },
  { name: "settled", value: (p) => p.settled_at, cell: (p) => <Moment at={p.settled_at} /> },
];

const RESIZES: Column<Resize>[] = [
  { name: "at", value: (r) => r.at, cell: (r) => <Moment at={r.at} /> },
  { name: "change", value: (r) => formatConfig(r.after), cell: (r) => `${formatConfig(r.before)} → ${formatConfig(r.after)}` },
  { name: "pause", value: (r) => r.pause, cell: (r) => formatSeconds(r.pause), isNumber: true },
  { name: "lost", head: "iterations lost", value: (r) => r.iterations_lost, cell: (r) => r.iterations_lost ?? UNKNOWN, isNumber: true },
  { name: "why", value: (r) => r.why, cell: (r) => r.why, isWide: true },
];
