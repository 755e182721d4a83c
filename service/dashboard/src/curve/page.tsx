import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useCallback, useDeferredValue, useEffect, useMemo, useRef, useState, type KeyboardEvent } from "react";
import { flushSync } from "react-dom";
import { explain } from "../api/client";
import { useConnection } from "../api/live";
import { changeJob, whatIf, type JobChange, type WhatIf } from "../api/orders";
import { useApi, useCurve, type WantedBasis } from "../api/queries";
import { useSession } from "../api/session";
import type { Curve, Decision, Job } from "../api/types";
import { Loaded, Notice, isFinal } from "../parts/basics";
import { Confirm } from "../parts/confirm";
import { CopyCommands, curl } from "../parts/commands";
import { formatDollars, formatSeconds } from "../parts/format";
import parts from "../parts/parts.module.css";
import { CurveChart } from "./chart";
import { Choices } from "./choices";
import { useEarlierFronts } from "./earlier";
import { findFront, pickByPrice } from "./front";
import { History } from "./history";
import { HowSure } from "./how-sure";
import { changeOf, limitFromCurve, limitsOnCurve, spentOf, wholeLimits, type LimitDraft } from "./limit-draft";
import { LimitFields } from "./limit-fields";
import { excludedIds, type LimitName } from "./limits";
import { configId, optionsOf, type Limits, type Option } from "./options";
import css from "./page.module.css";
import { PreferenceControl, SelectionPanel, orderRefusal } from "./panel";
import { PriceWish } from "./price-wish";
import { CurveStates, LimitStates, actualOf, isDegraded } from "./states";
import { isKneeSure, summarize } from "./summary";
import { OptionTable } from "./table";
import { WhatIfForm } from "./what-if";
import type { AxisKind } from "./view";
import { Why } from "./why";

const SETTLE_PAUSE = 350;

/** The page this product exists for: what is on offer, what a move changes, and the move itself. */
export default function CurvePage({ job, etag }: { job: Job; etag: string | null }) {
  const [decision, setDecision] = useState<number | null>(null);
  const [basis, setBasis] = useState<WantedBasis>("auto");
  const query = useCurve(job.id, decision, basis);
  const decisions = useApi<{ decisions: Decision[] }>(`/v1/jobs/${job.id}/decisions?limit=200`);
  return (
    <>
      <History decisions={decisions.data?.data.decisions ?? []} shown={decision} show={setDecision} />
      <Loaded query={query}>{(curve) => <CurveBody job={job} etag={etag} curve={curve} isPast={decision !== null} basis={basis} setBasis={setBasis} />}</Loaded>
    </>
  );
}

interface BodyProps {
  job: Job;
  etag: string | null;
  curve: Curve;
  isPast: boolean;
  basis: WantedBasis;
  setBasis: (basis: WantedBasis) => void;
}

function CurveBody({ job, etag, curve: answered, isPast, basis, setBasis }: BodyProps) {
  const { role } = useSession();
  const connection = useConnection();
  const [asked, setAsked] = useState<WhatIf | null>(null);
  const [draft, setDraft] = useState<LimitDraft | null>(null);
  const settledDraft = useSettled(draft, SETTLE_PAUSE);
  const whole = useMemo(() => wholeLimits(answered), [answered]);
  const body = useMemo(() => {
    if (asked === null && settledDraft === null) return null;
    return { ...asked, ...(settledDraft ? { limits: changeOf(whole, settledDraft) } : {}) };
  }, [asked, settledDraft, whole]);
  const imagined = useQuery({
    queryKey: [`/v1/jobs/${job.id}/curve`, "whatif", body, basis],
    queryFn: () => whatIf(job.id, body ?? {}, basis),
    enabled: body !== null && !isPast,
    placeholderData: keepPreviousData,
    retry: false,
  });
  // Without points there is nothing to imagine from; what holds stays on the screen.
  const isImagined = body !== null && !isPast && (imagined.data?.points.length ?? 0) > 0;
  const curve = isImagined && imagined.data ? imagined.data : answered;
  const [selected, setSelected] = useState<string | null>(null);
  const [isWhole, setWhole] = useState(false);
  const [wantsEarlier, setWantsEarlier] = useState(false);
  const [axes, setAxes] = useState<AxisKind>("linear");
  const [isTableOpen, setTableOpen] = useState(true);
  const page = useRef<HTMLDivElement>(null);

  const options = useMemo(() => optionsOf(curve), [curve]);
  const wanted = useMemo(() => ({ ...wholeLimits(curve), ...draft }), [curve, draft]);
  const limits = useMemo(() => limitsOnCurve(wanted, curve), [wanted, curve]);
  // Marks follow the line at once; what is costly to draw anew may come a frame later.
  const drawn = useDeferredValue(limits);
  const excluded = useMemo(() => excludedIds(options, drawn), [options, drawn]);
  const front = useMemo(() => findFront(options.filter((option) => !excluded.has(option.id))), [options, excluded]);
  const byId = useMemo(() => new Map(options.map((option) => [option.id, option])), [options]);
  const find = (id: string | null) => (id === null ? null : (byId.get(id) ?? null));
  const current = find(configId(curve.current));
  const refusal = connection.state === "gone" ? "The controller does not answer." : isPast ? "This is the curve of an earlier decision." : orderRefusal(job, role);
  const canMoveLimits = answered.basis !== "relative" && !isPast && !isFinal(job.phase) && options.length > 0;
  const changeLimit = (name: LimitName, value: number | null) => setDraft({ ...draft, [name]: value });
  const moveLimit = (name: LimitName, value: number | null) => changeLimit(name, limitFromCurve(name, value, curve));
  // Earlier jobs are known as whole jobs only, so they stand beside totals.
  const isOverlaid = wantsEarlier && answered.basis === "total";
  const earlier = useEarlierFronts(job, isOverlaid);
  const overlay = (isOn: boolean) => {
    setWantsEarlier(isOn);
    if (isOn) setBasis("total");
  };
  const toggleTable = useCallback(() => setTableOpen((isOpen) => !isOpen), []);
  // A letter is a key of the page only while the focus is on a part of it, and types where it can.
  const toggleByKey = (event: KeyboardEvent) => {
    const isTyping = (event.target as Element).matches("input:not([type=checkbox], [type=range]), select, textarea");
    if (event.key.toLowerCase() !== "t" || event.ctrlKey || event.metaKey || event.altKey || isTyping) return;
    event.preventDefault();
    flushSync(toggleTable);
    page.current?.querySelector<HTMLElement>(isTableOpen ? "[data-front][tabindex='0']" : "[data-twin] [role=region]")?.focus();
  };
  const reset = () => {
    setDraft(null);
    setAsked(null);
  };
  return (
    <div className={css.body} ref={page} onKeyDown={toggleByKey}>
      <CurveStates job={job} curve={asked === null ? answered : curve} />
      <div className={parts.row}>
        {!isFinal(job.phase) && <PreferenceControl job={job} etag={etag} curve={answered} refusal={refusal} current={current} find={(name) => find(configId(answered[name]))} />}
        <PriceWish curve={curve} front={front} pick={(price) => setSelected(pickByPrice(front, price)?.id ?? null)} picked={find(selected)} />
      </div>
      {canMoveLimits && <LimitFields whole={wanted} limits={limits} options={options} change={changeLimit} />}
      <div className={css.layout}>
        <div className={parts.stack}>
          {options.length > 0 && (
            <div className={css.toolbar}>
              {curve.spent !== null && !isFinal(job.phase) && <Choices label="Counted" names={["remaining", "total"]} chosen={curve.basis} choose={setBasis} />}
              <Choices label="Axes" names={["linear", "log"]} chosen={axes} choose={setAxes} />
              <label className={css.check}>
                <input type="checkbox" checked={isWhole} onChange={(event) => setWhole(event.target.checked)} /> every option
              </label>
              {earlier.count > 0 && curve.basis !== "relative" && (
                <label className={css.check} title="Their fronts are of whole jobs, so they are shown beside the total">
                  <input type="checkbox" checked={isOverlaid} onChange={(event) => overlay(event.target.checked)} /> earlier jobs
                </label>
              )}
            </div>
          )}
          {options.length > 0 && (
            <CurveChart
              frame={asked === null ? answered : curve}
              curve={curve}
              options={options}
              front={front}
              excluded={excluded}
              limits={limits}
              selected={selected}
              select={setSelected}
              changeLimit={canMoveLimits ? moveLimit : null}
              pinned={configId(job.pinned)}
              actual={actualOf(job, curve)}
              isWhole={isWhole}
              axes={axes}
              earlier={earlier.fronts}
              isDegraded={isDegraded(curve)}
              label={`Cost and time of ${job.name}`}
            />
          )}
          {options.length > 0 && <p data-summary>{summarize(curve, front, options)}</p>}
          {options.length > 0 && <HowSure curve={curve} options={options} excluded={excluded} own={current ?? find(configId(curve.chosen))} />}
        </div>
        {/* Beside the chart and not above it: what appears here while a limit is dragged must not move the line. */}
        <div className={parts.stack}>
          <LimitStates options={options} excluded={excluded} limits={limits} spent={spentOf(curve)} front={front} relax={canMoveLimits ? setDraft : null} />
          {(draft !== null || asked !== null) && (
            <Draft job={job} etag={etag} draft={draft} change={draft === null ? {} : changeOf(whole, draft)} asked={asked} whole={whole} left={limits.maxCost} reset={reset} refusal={refusal} why={imagined.data?.why ?? ""} error={imagined.error} />
          )}
          <SelectionPanel
            job={job}
            etag={etag}
            curve={curve}
            picked={find(selected) ?? recommended(curve, current, find)}
            isRecommended={selected === null}
            current={current}
            isExcluded={selected !== null && excluded.has(selected)}
            find={(name) => find(configId(curve[name]))}
            refusal={isImagined && asked !== null ? "This curve answers a what-if: nothing can be ordered from it." : refusal}
          />
        </div>
      </div>
      <Why curve={curve} job={job} isKneeSure={isKneeSure(curve)} />
      {options.length > 0 && (
        <OptionTable
          curve={curve}
          options={options}
          excluded={excluded}
          selected={selected}
          select={setSelected}
          name={job.name}
          pinned={configId(job.pinned)}
          isOpen={isTableOpen}
          toggle={toggleTable}
        />
      )}
      {!isPast && <WhatIfForm asked={asked} ask={setAsked} job={job} />}
    </div>
  );
}

/** Returns what is worth a look before anything is picked: what was chosen, unless it runs already, or the knee. */
function recommended(curve: Curve, current: Option | null, find: (id: string | null) => Option | null): Option | null {
  const [chosen, knee] = [find(configId(curve.chosen)), find(configId(curve.knee))];
  const others = [chosen, knee].filter((option) => option !== null && option !== current);
  return others[0] ?? current;
}

/** Returns a value once it has rested, so that a drag asks the controller once. */
function useSettled<T>(value: T, pause: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(value), pause);
    return () => clearTimeout(timer);
  }, [value, pause]);
  return value === null ? value : settled;
}

function Draft(props: {
  job: Job;
  etag: string | null;
  draft: LimitDraft | null;
  change: NonNullable<JobChange["limits"]>;
  asked: WhatIf | null;
  whole: Limits;
  /** What would be left of max_cost, in dollars. */
  left: number | null;
  reset: () => void;
  refusal: string | null;
  why: string;
  error: unknown;
}) {
  const { job, etag, draft, change, asked, whole, left, reset, refusal, why, error } = props;
  const changes = draft === null ? [] : describeChanges(whole, draft, change);
  const spend = (limit: number | null) => (limit === null ? "without a limit" : `at most ${formatDollars(limit)} in all, of which ${formatDollars(left)} is left`);
  const cap = draft?.maxCost === undefined ? whole.maxCost : draft.maxCost;
  const commands = {
    cli: ["scavenger limit", job.id, ...limitOptions(change)].join(" "),
    api: curl("PATCH", `/v1/jobs/${job.id}`, { limits: change }),
  };
  return (
    <Notice tone="warning">
      <div className={parts.stack} style={{ gap: "0.4rem" }}>
        <strong>What if: nothing is changed yet.</strong>
        {changes.length > 0 && <span>{changes.join("; ")}.</span>}
        {why && <span>{why}</span>}
        {error != null && <span>{explain(error)}</span>}
        <div className={parts.row}>
          {draft !== null && asked === null && changes.length > 0 && (
            <>
              <Confirm
                label="Apply these limits"
                title="Change the limits of the job?"
                action="Apply"
                isPrimary
                isDisabled={refusal !== null}
                confirm={() => changeJob(job.id, { limits: change }, etag).then(reset)}
                commands={commands}
              >
                <p>
                  {changes.join("; ")}. The job may spend {spend(cap)}, and may be resized.
                </p>
              </Confirm>
              <CopyCommands commands={commands} />
            </>
          )}
          <button type="button" className={parts.button} onClick={reset}>
            Back to what holds
          </button>
        </div>
      </div>
    </Notice>
  );
}

function describeChanges(before: Limits, after: LimitDraft, change: NonNullable<JobChange["limits"]>): string[] {
  const say = (name: string, from: number | null, to: number | null | undefined, write: (value: number) => string) =>
    `${name} ${from === null ? "none" : write(from)} → ${to == null ? "none" : write(to)}`;
  return [
    ...(change.max_cost === undefined ? [] : [say("max_cost", before.maxCost, after.maxCost, formatDollars)]),
    ...(change.max_time === undefined ? [] : [say("max_time", before.maxTime, after.maxTime, formatSeconds)]),
  ];
}

/** Writes a change of limits as options of the command line. */
export function limitOptions(change: NonNullable<JobChange["limits"]>): string[] {
  return [
    ...(change.max_cost === undefined ? [] : [`--max-cost ${change.max_cost === null ? "none" : `"${change.max_cost}"`}`]),
    ...(change.max_time === undefined ? [] : [`--max-time ${change.max_time ?? "none"}`]),
  ];
}
