import { useMemo } from "react";
import type { Curve, Job } from "../api/types";
import { Chip, Moment, Notice } from "../parts/basics";
import { useNow } from "../parts/clock";
import { formatConfig, formatDollars, formatPercent, formatSeconds, pluralize } from "../parts/format";
import parts from "../parts/parts.module.css";
import type { Actual } from "./chart";
import { LIMIT_WORDS } from "./limit";
import type { LimitDraft } from "./limit-draft";
import { nearestRelaxations } from "./limits";
import { optionsOf, type Limits, type Option } from "./options";

// After a day prices may have moved, and what a choice rests on with them.
const STALE_SECONDS = 86_400;
const NOTHING_SPENT = { maxCost: 0, maxTime: 0 };

/** Returns a moment of the controller's clock, which may be ahead of the browser's. */
function earlier(at: string, now: number): string {
  return Date.parse(at) > now ? new Date(now).toISOString() : at;
}

export function isDegraded(curve: Curve): boolean {
  return curve.calibration?.is_degraded ?? false;
}

/** Returns what a finished job took, where the curve counts the whole job. */
export function actualOf(job: Outcome, curve: Curve): Actual | null {
  if (job.phase !== "succeeded" || curve.basis !== "total") return null;
  return { seconds: job.elapsed, cost: Number(job.cost.accrued.amount) };
}

/** What of a job its curve is compared with. */
export type Outcome = Pick<Job, "phase" | "elapsed" | "cost" | "finished_at">;

/** What a reader must know about a curve before reading it. */
export function CurveStates({ job, curve }: { job: Outcome; curve: Curve }) {
  const options = useMemo(() => optionsOf(curve), [curve]);
  const now = useNow();
  const age = curve.as_of ? (now - new Date(curve.as_of).getTime()) / 1000 : 0;
  const isFinished = curve.is_finished ?? job.finished_at !== null;
  return (
    <div className={parts.stack} style={{ gap: "0.5rem" }}>
      <div className={parts.row}>
        {options.length > 0 && <Chip>{curve.basis === "total" ? "of the whole job" : curve.basis === "remaining" ? "of what is left of the job" : "relative to the start"}</Chip>}
        <Chip>{curve.source}</Chip>
        {curve.as_of && (
          <Chip tone={!isFinished && age > STALE_SECONDS ? "warning" : "plain"}>
            as of <Moment at={earlier(curve.as_of, now)} isAge={!isFinished} />
          </Chip>
        )}
        {curve.calibration && curve.calibration.forecasts > 0 && (
          <Chip tone={isDegraded(curve) ? "warning" : "plain"}>
            {formatPercent(curve.calibration.coverage)} of {pluralize(curve.calibration.forecasts, "forecast")} inside the 80 % band
          </Chip>
        )}
      </div>
      <p data-why>
        <strong>{curve.why}</strong>
      </p>
      {options.length === 0 && (
        <Notice>
          <span data-state="no-data">
            {isFinished
              ? "The job ended before anything was measured, so it has no curve."
              : `No curve yet: ${curve.source || curve.why}. It needs the first measured iterations of a worker; this page shows them as they come.`}
          </span>
        </Notice>
      )}
      {curve.basis === "relative" && options.length > 0 && (
        <Notice>
          <span data-state="relative">
            Times and costs are multiples of the start configuration&apos;s: how many epochs the target needs is not known yet, so limits cannot be judged.
          </span>
        </Notice>
      )}
      {isDegraded(curve) && (
        <Notice tone="warning">
          <span data-state="degraded">
            Earlier forecasts for this model missed their band too often ({formatPercent(curve.calibration?.coverage)} inside it, 80 % promised): read the front as a rough
            guide.
          </span>
        </Notice>
      )}
      {isFinished && options.length > 0 && <Finished job={job} curve={curve} options={options} />}
    </div>
  );
}

/** What limits leave to choose from, where that is little. */
export function LimitStates({ options, excluded, limits, spent = NOTHING_SPENT, front, relax }: {
  options: readonly Option[];
  excluded: ReadonlySet<string>;
  limits: Limits;
  /** What the limits of the whole job are larger by than these. */
  spent?: { maxCost: number; maxTime: number };
  front: readonly Option[];
  relax: ((draft: LimitDraft) => void) | null;
}) {
  return (
    <>
      {options.length > 0 && excluded.size === options.length && <AllExcluded options={options} limits={limits} spent={spent} relax={relax} />}
      {front.length === 1 && options.length > 1 && (
        <Notice>
          <span data-state="one-point">One option is both cheapest and fastest within the limits: there is nothing to choose between.</span>
        </Notice>
      )}
    </>
  );
}

interface Excluded {
  options: readonly Option[];
  limits: Limits;
  spent: { maxCost: number; maxTime: number };
  relax: ((draft: LimitDraft) => void) | null;
}

function AllExcluded({ options, limits, spent, relax }: Excluded) {
  const relaxations = nearestRelaxations(options, limits);
  return (
    <Notice tone="warning">
      <span data-state="all-infeasible">
        No option is 90 % sure to meet the limits.
      </span>
      {relaxations.map(({ limits: least, option, changed }) => {
        const rounded: LimitDraft = {};
        for (const name of changed) rounded[name] = roundUp((least[name] ?? 0) + spent[name]);
        const raised = changed.map((name) => `${LIMIT_WORDS[name]} to ${name === "maxCost" ? formatDollars(rounded[name]) : formatSeconds(rounded[name])}`);
        const words = `Raise ${raised.join(" and ")}: ${option.name}`;
        return relax ? (
          <button key={words} type="button" className={parts.button} onClick={() => relax(rounded)}>
            {words}
          </button>
        ) : (
          <span key={words}>{words}.</span>
        );
      })}
    </Notice>
  );
}

/** Rounds up to three digits, so that what is offered is a number a person would write. */
export function roundUp(value: number): number {
  const step = 10 ** (Math.floor(Math.log10(value)) - 2);
  return Number((Math.ceil(value / step - 1e-9) * step).toPrecision(12));
}

function Finished({ job, curve, options }: { job: Outcome; curve: Curve; options: readonly Option[] }) {
  const chosen = options.find((option) => option.workers === curve.chosen?.workers && option.batch === curve.chosen?.global_batch);
  const actual = actualOf(job, curve);
  // Nothing ran in a simulated job: there is nothing to compare with.
  const took = job.elapsed > 0 ? ` after ${formatSeconds(job.elapsed)} and ${formatDollars(job.cost.accrued.amount)}` : "";
  if (!actual || !chosen || !took) {
    return (
      <Notice>
        <span data-state="finished">
          The job has ended: {job.phase}
          {took}. This is the curve of its last choice.
        </span>
      </Notice>
    );
  }
  const error = (is: number, was: number) => `${is >= was ? "+" : "−"}${formatPercent(Math.abs(is / was - 1))}`;
  return (
    <Notice>
      <span data-state="finished">
        Finished: {formatSeconds(actual.seconds)} and {formatDollars(actual.cost)}; predicted for {formatConfig(curve.chosen)} were {formatSeconds(chosen.time)} (
        {error(actual.seconds, chosen.time)}) and {formatDollars(chosen.cost)} ({error(actual.cost, chosen.cost)}), the whole job there.
      </span>
    </Notice>
  );
}
