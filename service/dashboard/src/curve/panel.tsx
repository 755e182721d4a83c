import { AlertDialog } from "@base-ui/react/alert-dialog";
import { useState, type ReactNode } from "react";
import { Problem, explain } from "../api/client";
import { describeTarget, probe, resize, type Target } from "../api/orders";
import { refreshJob } from "../api/queries";
import type { Config, Curve, Job, JobSpec } from "../api/types";
import { Confirm } from "../parts/confirm";
import { CopyCommands, InShell, curl, type Commands } from "../parts/commands";
import { Notice, isFinal } from "../parts/basics";
import { formatConfig, formatCost, formatDollars, formatMoney, formatNumber, formatPercent, formatSeconds, formatTime } from "../parts/format";
import { Term } from "../parts/glossary";
import parts from "../parts/parts.module.css";
import { configId, learningRateFactor, memoryLeft, type Option } from "./options";
import css from "./panel.module.css";

interface Props {
  job: Job;
  etag: string | null;
  curve: Curve;
  picked: Option | null;
  current: Option | null;
  /** Whether it is shown because nothing was picked yet. */
  isRecommended: boolean;
  isExcluded: boolean;
  /** Why nothing can be ordered from here; null where it can. */
  refusal: string | null;
  find: Find;
}

/** The picked option beside the running one, and what can be done with it. */
export function SelectionPanel({ job, etag, curve, picked, isRecommended, current, isExcluded, refusal, find }: Props) {
  const hint = "Pick an option: click its mark, walk the front with the arrow keys and press Enter, or pick a row of the table.";
  if (!picked) {
    return (
      <section className={parts.card} aria-label="Selection">
        <h2>Selection</h2>
        <p className={parts.muted}>{hint}</p>
      </section>
    );
  }
  const config = { workers: picked.workers, global_batch: picked.batch, stack: picked.point.stack };
  const isRunning = current?.id === picked.id;
  const reason = refusal ?? (isRunning ? "The job runs on this option." : null);
  const difference = current && curve.basis !== "relative" ? costEffect(picked, current) : "";
  return (
    <section className={parts.card} aria-label="Selection" data-selected={picked.id}>
      <div className={parts.row}>
        <h2>
          {picked.name}
        </h2>
        {namesOf(picked, curve, job).map((name) => (
          <span key={name} className={parts.chip}>
            {name}
          </span>
        ))}
      </div>
      <Difference picked={picked} current={isRunning ? null : current} curve={curve} spec={job.spec} />
      {isExcluded && <Notice tone="warning">{picked.point.violations.join("; ") || "The limits exclude this option."}</Notice>}
      {curve.switch && !isRunning && !isFinal(job.phase) && (
        <p className={parts.small}>
          Moving there takes about {formatSeconds(curve.switch.seconds)} and {formatDollars(curve.switch.cost)}; no iteration is lost.
        </p>
      )}
      {reason && !isFinal(job.phase) && <p className={parts.muted}>{reason}</p>}
      {isRecommended && <p className={`${parts.muted} ${parts.small}`}>{hint}</p>}
      {!isFinal(job.phase) && <div className={parts.row}>
        <ApplyOrder job={job} etag={etag} {...(isRunning ? pinOrder(job, curve, current, config, refusal !== null, find) : moveOrder(job, config, difference, reason !== null))} />
        <Confirm
          label={`Probe this option${probeEffect(picked, curve, true)}`}
          title={`Probe ${formatConfig(config)}?`}
          action="Probe"
          isDisabled={reason !== null}
          confirm={() => probe(job.id, config, etag)}
          commands={{ cli: `scavenger probe ${job.id} ${describeTarget(config)}`, api: curl("POST", `/v1/jobs/${job.id}/actions/probe`, config) }}
        >
          <p>
            The job trains there for about 30 iterations, which count, and returns to where it was. {probeEffect(picked, curve)}
          </p>
        </Confirm>
        <CopyCommands commands={resizeCommands(job.id, config)} />
      </div>}
    </section>
  );
}

/** Returns what an option is called, as the chart marks it. */
function namesOf(option: Option, curve: Curve, job: Job): string[] {
  const named: [name: string, config: Config | null][] = [
    ["▣ running", curve.current],
    ["⚑ pinned", job.pinned],
    [curve.knee_bends ? "★ knee" : "", curve.knee],
    ["chosen", curve.chosen],
    ["fastest", curve.fastest],
    ["cheapest", curve.cheapest],
  ];
  return named.filter(([name, config]) => name && configId(config) === option.id).map(([name]) => name);
}

/** Moves the job to another option, and keeps it there. */
function moveOrder(job: Job, config: Config, difference: string, isDisabled: boolean): OrderQuestion {
  const children = (
    <p>
      {formatConfig(job.applied ?? job.target)} → {formatConfig(config)}. {difference} The job is pinned there until it is told to follow automatically again.
    </p>
  );
  return { to: config, label: "Apply now", children, isDisabled, isPrimary: true };
}

function resizeCommands(job: string, to: Target): Commands {
  return { cli: `scavenger resize ${job} --to ${describeTarget(to)}`, api: curl("POST", `/v1/jobs/${job}/actions/resize`, { to }) };
}

type Find = (name: "cheapest" | "knee" | "fastest") => Option | null;

/** Says what a job that follows its objective again would do now, as far as the curve tells. */
function autoEffect(job: Job, curve: Curve, current: Option | null, find: Find): string {
  const start = `The job follows its objective again: ${curve.objective}. It moves when that pays more than a resize takes.`;
  const { objective = "knee" } = job.spec;
  const wanted = objective === "knee" || objective === "cheapest" || objective === "fastest" ? find(objective) : null;
  if (wanted === null || current === null || curve.basis === "relative") return `${start} What that costs is not known yet.`;
  if (wanted.id === current.id) return `${start} It runs there now.`;
  return `${start} Now that is ${wanted.name}: ${costEffect(wanted, current)}`;
}

/** Keeps the job where it runs, or lets it move by itself again. */
function pinOrder(job: Job, curve: Curve, current: Option | null, config: Config, isDisabled: boolean, find: Find): OrderQuestion {
  if (configId(job.pinned) === configId(config)) {
    const children = <p>{autoEffect(job, curve, current, find)}</p>;
    return { to: "auto", label: "Unpin", title: `Let ${job.name} move again?`, action: "Unpin", children, isDisabled };
  }
  const children = <p>Nothing is resized: the job runs there now, and stays until it is told to follow automatically again, even when its noise drifts.</p>;
  return { to: config, label: "⚑ Pin", title: `Pin ${job.name} to ${formatConfig(config)}?`, action: "Pin", children, isDisabled };
}

function Difference({ picked, current, curve, spec }: { picked: Option; current: Option | null; curve: Curve; spec: JobSpec }) {
  const basis = curve.basis;
  const memory = spec.limits?.memory;
  const row = (name: ReactNode, write: (option: Option) => ReactNode, value?: (option: Option) => number): [ReactNode, ReactNode, ReactNode, string] => [
    name,
    current ? write(current) : null,
    write(picked),
    value && current ? tone(value(picked), value(current)) : "",
  ];
  const range = (middle: string, low: string, high: string) => (
    <>
      {middle}
      {low !== high && (
        <span className={css.range}>
          {low}–{high}
        </span>
      )}
    </>
  );
  const rows = [
    row(<Term word="K">workers (K)</Term>, (o) => o.workers),
    row(<Term word="B">global batch (B)</Term>, (o) => o.batch),
    row("batch per worker", (o) => formatNumber(o.batch / o.workers)),
    row("time to target", (o) => range(formatTime(o.time, basis), formatTime(o.timeLow, basis), formatTime(o.timeHigh, basis)), (o) => o.time),
    row("cost to target", (o) => range(formatCost(o.cost, basis), formatCost(o.costLow, basis), formatCost(o.costHigh, basis)), (o) => o.cost),
    ...(picked.point.meets.max_cost === null ? [] : [row("meets max_cost", (o) => formatPercent(o.point.meets.max_cost))]),
    ...(picked.point.meets.max_time === null ? [] : [row("meets max_time", (o) => formatPercent(o.point.meets.max_time))]),
    row(<Term word="τ">iteration (τ)</Term>, (o) => formatSeconds(o.point.step_time)),
    row("parallel efficiency", (o) => formatPercent(o.point.parallel_efficiency)),
    row("statistical efficiency", (o) => formatPercent(o.point.statistical_efficiency)),
    ...(learningRateFactor(spec, curve, picked.batch) === null ? [] : [row("learning rate", (o) => `× ${formatNumber(learningRateFactor(spec, curve, o.batch))}`)]),
    ...(memory ? [row("memory left", (o) => describeMemory(memory.machine_gib, memoryLeft(memory, o.workers, o.batch)))] : []),
    row("$ per hour saved", (o) => (o.point.marginal_price === null ? "–" : formatDollars(o.point.marginal_price))),
    row("figures are", (o) => o.source),
  ];
  return (
    <table className={css.diff}>
      <caption className="hidden-text">The selected option beside the running one</caption>
      <thead>
        <tr>
          <th scope="col"> </th>
          {current && <th scope="col">running</th>}
          <th scope="col">selected</th>
        </tr>
      </thead>
      <tbody>
        {rows.map(([name, before, after, change], index) => (
          <tr key={index}>
            <th scope="row">{name}</th>
            {current && <td>{before}</td>}
            <td className={css[change]}>{after}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function describeMemory(whole: number, left: number): string {
  return `${formatNumber(left)} of ${formatNumber(whole)} GiB`;
}

function tone(after: number, before: number): string {
  if (Math.abs(after - before) <= 0.005 * Math.abs(before)) return "";
  return after < before ? "better" : "worse";
}

/** Says what a move does to cost and time, in words. */
export function costEffect(picked: Option, current: Option): string {
  const { saving } = picked.point;
  const cost = saving ? -Number(saving.cost) : picked.cost - current.cost;
  const time = saving ? -saving.seconds : picked.time - current.time;
  const money = Math.abs(cost) < 1e-12 ? "Costs the same" : `${cost < 0 ? "Saves" : "Costs"} about ${formatDollars(Math.abs(cost))}${cost < 0 ? "" : " more"}`;
  const span = Math.abs(time) < 1 ? "takes as long" : `takes about ${formatSeconds(Math.abs(time))} ${time < 0 ? "less" : "more"}`;
  return `${money}, ${span}.`;
}

function probeEffect(picked: Option, curve: Curve, isShort = false): string {
  if (curve.basis === "relative" || picked.time <= 0) return isShort ? "" : "What it costs is not known yet.";
  const seconds = 30 * picked.point.step_time + 2 * (curve.switch?.seconds ?? 0);
  const dollars = formatDollars((picked.cost / picked.time) * seconds);
  return isShort ? ` (≈ ${formatSeconds(seconds)}, ${dollars})` : `It takes about ${formatSeconds(seconds)} and ${dollars}.`;
}

interface OrderQuestion {
  to: Target;
  label: ReactNode;
  title?: string;
  action?: string;
  children: ReactNode;
  isDisabled?: boolean;
  isPrimary?: boolean;
}

/** A button that orders a resize; when something was decided meanwhile, it shows that first. */
export function ApplyOrder({ job, etag, ...question }: { job: Job; etag: string | null } & OrderQuestion) {
  const { label, isDisabled = false, isPrimary = false } = question;
  const [isOpen, setOpen] = useState(false);
  // An open dialog keeps its question, though the job may get there meanwhile by another's order.
  const [asked, setAsked] = useState<OrderQuestion>(question);
  const { to, children, title = `Resize ${job.name}?`, action = "Apply" } = isOpen ? asked : question;
  // The version that was on the screen when the dialog opened; undefined for the newest one.
  const [version, setVersion] = useState<string | null | undefined>(undefined);
  const [isBusy, setBusy] = useState(false);
  const [refusal, setRefusal] = useState<unknown>(null);
  const isStale = refusal instanceof Problem && refusal.body.status === 412;
  const send = async () => {
    setBusy(true);
    try {
      await resize(job.id, to, version === undefined ? etag : version);
      setOpen(false);
    } catch (error) {
      setRefusal(error);
    } finally {
      setBusy(false);
    }
  };
  // What was read is the version that the refusal showed, and nothing later.
  const readNews = async () => {
    await refreshJob(job.id);
    setVersion((isStale && refusal.body.current?.etag) || undefined);
    setRefusal(null);
  };
  return (
    <AlertDialog.Root
      open={isOpen}
      onOpenChange={(open) => {
        setOpen(open);
        if (open) {
          setAsked(question);
          setVersion(etag);
          setRefusal(null);
        }
      }}
    >
      <AlertDialog.Trigger className={`${parts.button} ${isPrimary ? parts.primary : ""}`} disabled={isDisabled}>
        {label}
      </AlertDialog.Trigger>
      <AlertDialog.Portal>
        <AlertDialog.Backdrop className={parts.backdrop} />
        <AlertDialog.Popup className={parts.dialog} data-dialog="apply">
          <AlertDialog.Title>{title}</AlertDialog.Title>
          <AlertDialog.Description render={<div />} className={parts.stack}>
            {children}
          </AlertDialog.Description>
          <InShell commands={resizeCommands(job.id, to)} />
          {refusal !== null && !isStale && <Notice tone="bad">{explain(refusal)}</Notice>}
          {isStale && <News problem={refusal} job={job} />}
          <div className={parts.actions}>
            <AlertDialog.Close className={parts.button}>Keep as it is</AlertDialog.Close>
            {isStale ? (
              <button type="button" className={`${parts.button} ${parts.primary}`} onClick={() => void readNews()}>
                I have read it: ask again
              </button>
            ) : (
              <button type="button" className={`${parts.button} ${parts.primary}`} disabled={isBusy} onClick={() => void send()}>
                {isBusy ? "Asking…" : action}
              </button>
            )}
          </div>
        </AlertDialog.Popup>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}

function News({ problem, job }: { problem: Problem; job: Job }) {
  const current = problem.body.current;
  return (
    <Notice tone="warning">
      <strong>Something was decided since this page was shown; nothing was changed.</strong>
      <span>
        The job now wants {formatConfig(current?.target ?? job.target)}; forecast {formatMoney(current?.forecast ?? job.cost.forecast)}.
      </span>
    </Notice>
  );
}

export function PreferenceControl({ job, etag, curve, refusal, current, find }: {
  job: Job;
  etag: string | null;
  curve: Curve;
  refusal: string | null;
  current: Option | null;
  find: Find;
}) {
  const held = job.preference ?? "auto";
  const names = ["auto", "cheapest", "knee", "fastest"] as const;
  return (
    <div className={parts.toggles} role="group" aria-label="Preference" data-preference={held}>
      {names.map((name) => {
        const option = name === "auto" ? null : find(name);
        const isHeld = held === name;
        if (isHeld || refusal !== null) {
          return (
            <button key={name} type="button" className={parts.button} aria-pressed={isHeld} disabled={!isHeld} title={refusal ?? undefined}>
              {name}
            </button>
          );
        }
        return (
          <ApplyOrder key={name} job={job} etag={etag} to={name} label={name}>
            <p>
              {name === "auto"
                ? autoEffect(job, curve, current, find)
                : `The job moves to the ${name} option within its limits, ${option ? option.name : "which is not known yet"}, and stays with that preference.`}{" "}
              {option && current && curve.basis !== "relative" ? costEffect(option, current) : ""}
            </p>
          </ApplyOrder>
        );
      })}
      {held === "pinned" && <span className={parts.chip}>⚑ pinned {formatConfig(job.pinned)}</span>}
    </div>
  );
}

/** Says why a job takes no orders; null where it takes them. */
export function orderRefusal(job: Job, role: string): string | null {
  if (isFinal(job.phase)) return "The job has ended.";
  if (role === "viewer") return "Your token may only look: a submitter's may change jobs.";
  if (job.spec.level === "observe" || job.spec.level === "advise") return `The job's level is ${job.spec.level}: it is not resized. Submit it with level: control.`;
  return null;
}
