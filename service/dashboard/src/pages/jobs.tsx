import { useEffect, useState } from "react";
import { Link, useLocation } from "wouter";
import { pagesQuery, usePages } from "../api/pages";
import { queryClient } from "../api/queries";
import { useSession } from "../api/session";
import type { Job } from "../api/types";
import { Bar, Chip, ListState, Moment, Money, Notice, PHASE_NAMES, PhaseChip, Title, isFinal } from "../parts/basics";
import { useNow } from "../parts/clock";
import { Command, CopyCommands, curl } from "../parts/commands";
import { UNKNOWN, formatConfig, formatMoney, formatPercent, formatSeconds, toNumber } from "../parts/format";
import parts from "../parts/parts.module.css";
import { chosenProject, useProject } from "../parts/project";
import { useFilters } from "../parts/query";
import { DataTable, type Column } from "../parts/table";
import { BulkCancel } from "./bulk-cancel";
import css from "./pages.module.css";
import { SavedViews } from "./saved-views";

interface JobPageOf {
  jobs: Job[];
  next_cursor: string | null;
}

const MOST_COMPARED = 6;
const FILTERS = ["phase", "model", "since", "q"] as const;
// What a row shows, so that the controller sends no more.
const FIELDS = "id,name,project,model_key,phase,reason,target,applied,workers_alive,progress,cost,eta,advice,moved_knee,created_at,finished_at,elapsed,is_paused,preference";

function listQuery(filters: URLSearchParams, project: string | null): URLSearchParams {
  const query = new URLSearchParams({ limit: "50" });
  for (const name of FILTERS) {
    const value = filters.get(name);
    if (value) query.set(name, value);
  }
  if (project) query.set("project", project);
  query.set("fields", FIELDS);
  return query;
}

/** Asks for the list that an address shows, before its page is drawn. */
export function askForJobs(search: string): void {
  const filters = new URLSearchParams(search);
  void queryClient.prefetchInfiniteQuery(pagesQuery<JobPageOf>("/v1/jobs", listQuery(filters, chosenProject(search))));
}

/** All jobs, newest first; the address holds the filters. */
export function JobsPage() {
  const [filters, change] = useFilters();
  const [, navigate] = useLocation();
  const { role } = useSession();
  const list = usePages<JobPageOf>("/v1/jobs", listQuery(filters, useProject()));
  const jobs = list.data?.pages.flatMap((page) => page.jobs) ?? [];
  const isFiltered = FILTERS.some((name) => filters.get(name));
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const selected = jobs.filter((job) => chosen.has(job.id));
  return (
    <>
      <div className={css.head}>
        <Title page="Jobs">Jobs</Title>
        <div className={parts.row}>
          {selected.length >= 2 && selected.length <= MOST_COMPARED && (
            <Link href={`/compare?jobs=${selected.map((job) => job.id).join(",")}`} className={parts.button ?? ""}>
              Compare {selected.length} jobs
            </Link>
          )}
          {selected.length > 0 && role !== "viewer" && <BulkCancel jobs={selected} finish={() => setChosen(new Set())} />}
          <SavedViews query={filters.toString()} />
          <CopyCommands commands={{ cli: listCommand(filters), api: curl("GET", `/v1/jobs${filters.size ? `?${filters}` : ""}`) }} />
        </div>
      </div>
      <Filters filters={filters} change={change} />
      <ListState list={list} />
      {list.data && (
        <DataTable
          label="Jobs"
          rows={jobs}
          columns={columnsOf(jobs, chosen, setChosen)}
          rowKey={(job) => job.id}
          rowData={(job) => ({ "data-job": job.id, "data-phase": job.phase })}
          csv="jobs.csv"
          empty={isFiltered ? <NothingFound reset={() => navigate("/jobs")} /> : <QuickStart />}
          more={
            list.hasNextPage && (
              <button type="button" className={parts.button} disabled={list.isFetchingNextPage} onClick={() => void list.fetchNextPage()}>
                {list.isFetchingNextPage ? "Asking…" : "Older jobs"}
              </button>
            )
          }
        />
      )}
    </>
  );
}

/** Writes the filters of an address as options of the command line. */
function listCommand(filters: URLSearchParams): string {
  const options = [...filters].flatMap(([name, value]) => {
    if (name === "phase") return value.split(",").map((phase) => `--phase ${phase}`);
    return [`--${name === "q" ? "match" : name} ${/^[\w./:@-]+$/.test(value) ? value : `'${value.replaceAll("'", "'\\''")}'`}`];
  });
  return ["scavenger list", ...options].join(" ");
}

function columnsOf(jobs: readonly Job[], chosen: ReadonlySet<string>, choose: (chosen: ReadonlySet<string>) => void): Column<Job>[] {
  const toggle = (job: string) => {
    const next = new Set(chosen);
    if (!next.delete(job)) next.add(job);
    choose(next);
  };
  const isAll = jobs.length > 0 && jobs.every((job) => chosen.has(job.id));
  // A column that says the same in each row takes the room of others on a narrow screen.
  const isNeedless = { advice: !jobs.some((job) => job.advice?.config || moveOf(job)), project: new Set(jobs.map((job) => job.project)).size < 2 };
  const columns: Column<Job>[] = [
    {
      name: "select",
      head: <input type="checkbox" aria-label="Select all that are listed" checked={isAll} onChange={() => choose(new Set(isAll ? [] : jobs.map((job) => job.id)))} />,
      cell: (job) => <input type="checkbox" aria-label={`Select ${job.name}`} checked={chosen.has(job.id)} onChange={() => toggle(job.id)} />,
    },
    {
      name: "name",
      value: (job) => job.name,
      cell: (job) => (
        <>
          <Link href={`/jobs/${job.id}`}>{job.name}</Link>
          <div className={`${parts.muted} ${parts.small}`}>{job.model_key === job.name ? job.id.slice(-8) : job.model_key}</div>
        </>
      ),
    },
    { name: "phase", value: (job) => job.phase, cell: (job) => <PhaseChip phase={job.phase} isPaused={job.is_paused ?? false} /> },
    { name: "progress", value: (job) => progressOf(job), cell: (job) => <Progress job={job} /> },
    { name: "workers", head: "K", value: (job) => (job.applied ?? job.target)?.workers ?? null, cell: (job) => (job.applied ?? job.target)?.workers ?? UNKNOWN, isNumber: true },
    { name: "batch", head: "B", value: (job) => (job.applied ?? job.target)?.global_batch ?? null, cell: (job) => (job.applied ?? job.target)?.global_batch ?? UNKNOWN, isNumber: true },
    { name: "left", value: (job) => job.eta?.p50 ?? null, cell: (job) => <TimeCell job={job} />, isNumber: true },
    { name: "cost", value: (job) => toNumber(job.cost.accrued.amount), cell: (job) => <CostCell job={job} />, isNumber: true },
    { name: "advice", value: (job) => job.advice?.why ?? moveOf(job), cell: (job) => <Advice job={job} /> },
    { name: "age", value: (job) => job.created_at, cell: (job) => <Moment at={job.created_at} isAge />, isNumber: true },
    { name: "project", value: (job) => job.project ?? "", cell: (job) => job.project ?? "" },
  ];
  return columns.filter(({ name }) => !isNeedless[name as keyof typeof isNeedless]);
}

/** Says where the knee has moved to: what is the same there as where the job runs is left out. */
function moveOf(job: Job): string | null {
  const [from, to] = [job.applied, job.moved_knee];
  if (!from || !to) return null;
  const parts = [
    from.workers === to.workers ? "" : `K ${from.workers} → ${to.workers}`,
    from.global_batch === to.global_batch ? "" : `B ${from.global_batch} → ${to.global_batch}`,
  ];
  return `knee moved: ${parts.filter(Boolean).join(", ")}`;
}

function Advice({ job }: { job: Job }) {
  if (job.advice?.config) return <Chip tone="warning" title={job.advice.why}>→ {formatConfig(job.advice.config)}</Chip>;
  const move = moveOf(job);
  if (move === null) return null;
  return (
    <Link href={`/jobs/${job.id}/curve`} data-badge="knee-moved" title="The curve says what a move there saves, and offers it">
      <Chip tone="warning">★ {move}</Chip>
    </Link>
  );
}

export function progressOf(job: Job): number | null {
  const goal = job.progress.expected_epochs ?? job.progress.max_epochs;
  if (job.phase === "succeeded") return 1;
  return goal ? Math.min(job.progress.epochs / goal, 1) : null;
}

function Progress({ job }: { job: Job }) {
  const share = progressOf(job);
  if (share === null) return <>{UNKNOWN}</>;
  const of = job.progress.expected_epochs === null ? "of the most epochs" : "of the predicted epochs";
  const label = `${formatPercent(share)} ${of}`;
  return (
    <div title={label}>
      <Bar share={share} label={label} />
      <span className={`${parts.muted} ${parts.small}`}>{formatPercent(share)}</span>
    </div>
  );
}

function TimeCell({ job }: { job: Job }) {
  return (
    <>
      {isFinal(job.phase) && <span className={parts.muted}>took </span>}
      <Eta job={job} />
    </>
  );
}

export function Eta({ job }: { job: Job }) {
  const now = useNow();
  if (isFinal(job.phase)) return <span title="took">{formatSeconds(job.elapsed)}</span>;
  if (!job.eta) return <>{UNKNOWN}</>;
  const left = (moment: string) => formatSeconds(Math.max((new Date(moment).getTime() - now) / 1000, 0));
  return (
    <span title={`${left(job.eta.p10)} to ${left(job.eta.p90)} in eight of ten cases`}>
      {left(job.eta.p50)}
      <span className="hidden-text"> ({left(job.eta.p10)} to {left(job.eta.p90)})</span>
    </span>
  );
}

function CostCell({ job }: { job: Job }) {
  const { accrued, cap } = job.cost;
  const share = cap ? Number(accrued.amount) / Number(cap.amount) : null;
  return (
    <>
      <Money value={accrued} />
      {cap && <span className={parts.muted}> / {formatMoney(cap)}</span>}
      {share !== null && <Bar share={share} tone={share > 0.95 ? "bad" : "plain"} label={`${formatPercent(share)} of the cap is spent`} />}
    </>
  );
}

function Filters({ filters, change }: { filters: URLSearchParams; change: (change: Record<string, string | null>) => void }) {
  return (
    <form className={css.filters} role="search" onSubmit={(event) => event.preventDefault()}>
      <Filter name="q" label="Name or id" filters={filters} change={change} placeholder="the beginning of a name, or an id" />
      <label className={parts.field}>
        <span>Phase</span>
        <select className={parts.input} value={filters.get("phase") ?? ""} onChange={(event) => change({ phase: event.target.value || null })}>
          <option value="">all</option>
          <option value="pending,starting,probing,training">not ended</option>
          {PHASE_NAMES.map((phase) => (
            <option key={phase} value={phase}>
              {phase}
            </option>
          ))}
        </select>
      </label>
      <Filter name="model" label="Model" filters={filters} change={change} placeholder="a model key" />
      <label className={parts.field}>
        <span>Since</span>
        <input
          type="date"
          className={parts.input}
          value={filters.get("since")?.slice(0, 10) ?? ""}
          onChange={(event) => change({ since: event.target.value ? `${event.target.value}T00:00:00Z` : null })}
        />
      </label>
    </form>
  );
}

const TYPING_PAUSE = 250;

function Filter({ name, label, filters, change, placeholder }: {
  name: string;
  label: string;
  filters: URLSearchParams;
  change: (change: Record<string, string | null>) => void;
  placeholder: string;
}) {
  const kept = filters.get(name) ?? "";
  const [text, setText] = useState(kept);
  useEffect(() => setText(kept), [kept]);
  useEffect(() => {
    if (text === kept) return undefined;
    const timer = window.setTimeout(() => change({ [name]: text.trim() || null }), TYPING_PAUSE);
    return () => clearTimeout(timer);
    // eslint-disable-next-line
  }, [text]);
  return (
    <label className={parts.field}>
      <span>{label}</span>
      <input className={parts.input} type="search" value={text} placeholder={placeholder} onChange={(event) => setText(event.target.value)} />
    </label>
  );
}

function NothingFound({ reset }: { reset: () => void }) {
  return (
    <Notice>
      No job is like that.
      <button type="button" className={parts.button} onClick={reset}>
        Show all jobs
      </button>
    </Notice>
  );
}

function QuickStart() {
  return (
    <section className={parts.card} aria-label="Quick start">
      <h2>No job yet: three steps to the first one</h2>
      <ol className={css.quick}>
        <li>
          Write a job document beside your training script.
          <Command title="Command line" text="scavenger init" />
        </li>
        <li>
          See what it would cost and take; nothing is spent. Or <Link href="/plan">paste the document here</Link>.
          <Command title="Command line" text="scavenger plan scavenger.yaml" />
        </li>
        <li>
          Submit it, and watch its curve on this page.
          <Command title="Command line" text="scavenger submit scavenger.yaml" />
        </li>
      </ol>
      <p className={parts.muted}>
        Nothing at hand? <code>scavenger demo</code> trains a small job on this computer.
      </p>
    </section>
  );
}
