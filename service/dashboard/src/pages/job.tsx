import { Suspense, lazy } from "react";
import { Link } from "wouter";
import { useJob } from "../api/queries";
import { useSession } from "../api/session";
import { cancel, pause, resume } from "../api/orders";
import type { Job } from "../api/types";
import { Chip, Loaded, Notice, PhaseChip, Title, isFinal } from "../parts/basics";
import { Confirm } from "../parts/confirm";
import { CopyCommands, curl } from "../parts/commands";
import { formatMoney, pluralize } from "../parts/format";
import parts from "../parts/parts.module.css";
import { Overview } from "./overview";
import css from "./pages.module.css";

const loadCurve = () => import("../curve/page");
const CurveView = lazy(loadCurve);
const TelemetryView = lazy(() => import("./telemetry"));
const JobEvents = lazy(() => import("./job-events"));
const Logs = lazy(() => import("./logs"));

// Telemetry and logs name their command themselves, with what is chosen there.
const VIEWS: [view: string, name: string, cli: string, api: string][] = [
  ["overview", "Overview", "show", ""],
  ["curve", "Curve", "curve", "/curve"],
  ["telemetry", "Telemetry", "", "/telemetry"],
  ["events", "Decisions and events", "events", "/events"],
  ["logs", "Logs", "", "/logs"],
];

/** Loads the code of a view before the job is known that it shows. */
export function loadView(view: string): void {
  if (view === "curve") void loadCurve();
}

export default function JobPage({ job, view }: { job: string; view: string }) {
  const query = useJob(job);
  return (
    <Loaded query={query}>
      {(found) => (
        <>
          <JobHeader job={found} etag={query.data?.etag ?? null} view={view} />
          <Suspense fallback={<div className={parts.skeleton} role="status" aria-label="loading" />}>
            <View job={found} etag={query.data?.etag ?? null} view={view} />
          </Suspense>
        </>
      )}
    </Loaded>
  );
}

function View({ job, etag, view }: { job: Job; etag: string | null; view: string }) {
  switch (view) {
    case "curve":
      return <CurveView job={job} etag={etag} />;
    case "telemetry":
      return <TelemetryView job={job} />;
    case "events":
      return <JobEvents job={job} />;
    case "logs":
      return <Logs job={job} />;
    default:
      return <Overview job={job} />;
  }
}

const isSimulated = (job: Job) => [job.id.replace(/^job_/, ""), job.model_key, job.name].some((name) => /^simulated\b/.test(name));

function JobHeader({ job, etag, view }: { job: Job; etag: string | null; view: string }) {
  const shown = VIEWS.find(([name]) => name === view) ?? VIEWS[0];
  return (
    <header className={parts.stack} style={{ gap: "0.6rem" }}>
      <div className={css.head}>
        <div className={parts.row}>
          <Title page={`${job.name} ${shown?.[1] ?? ""}`}>{job.name}</Title>
          <PhaseChip phase={job.phase} isPaused={job.is_paused ?? false} />
          {isSimulated(job) && <Chip tone="warning">simulated: no machine ran</Chip>}
          {(job.open_orders ?? 0) > 0 && <Chip tone="warning">{pluralize(job.open_orders ?? 0, "open order")}</Chip>}
        </div>
        <div className={parts.row}>
          <JobActions job={job} etag={etag} />
          {shown && shown[2] && <CopyCommands commands={{ cli: `scavenger ${shown[2]} ${job.id}`, api: curl("GET", `/v1/jobs/${job.id}${shown[3]}`) }} />}
        </div>
      </div>
      {job.reason && <p data-reason>{job.reason}</p>}
      {job.progress.diverged && <Notice tone="bad">{job.progress.diverged}</Notice>}
      <nav className={parts.tabs} aria-label="Views of the job">
        {VIEWS.map(([name, title]) => (
          <Link
            key={name}
            href={name === "overview" ? `/jobs/${job.id}` : `/jobs/${job.id}/${name}`}
            className={parts.tab ?? ""}
            aria-current={name === view ? "page" : undefined}
          >
            {title}
          </Link>
        ))}
      </nav>
    </header>
  );
}

function JobActions({ job, etag }: { job: Job; etag: string | null }) {
  const { role } = useSession();
  if (isFinal(job.phase) || role === "viewer") return null;
  const left = job.cost.forecast ? Math.max(Number(job.cost.forecast.amount) - Number(job.cost.accrued.amount), 0) : null;
  const saved = left === null ? "what is left of its cost" : `about ${formatMoney({ amount: left.toFixed(9), currency: "USD" })}`;
  const inShell = (action: string) => ({ cli: `scavenger ${action} ${job.id}`, api: curl("POST", `/v1/jobs/${job.id}/actions/${action}`) });
  return (
    <>
      {job.is_paused ? (
        <Confirm label="Resume" title={`Resume ${job.name}?`} action="Resume" confirm={() => resume(job.id, etag)} commands={inShell("resume")} isPrimary>
          <p>Machines are launched again and cost money from then on; training continues at its last checkpoint.</p>
        </Confirm>
      ) : (
        <Confirm label="Pause" title={`Pause ${job.name}?`} action="Pause" confirm={() => pause(job.id, etag)} commands={inShell("pause")}>
          <p>
            The job saves a checkpoint and all its machines are terminated: it costs nothing until it is resumed, which adds the time that machines need to start. Spent so
            far: {formatMoney(job.cost.accrued)}.
          </p>
        </Confirm>
      )}
      <Confirm label="Cancel job" title={`Cancel ${job.name}?`} action="Cancel the job" confirm={() => cancel(job.id, etag)} commands={inShell("cancel")} isDanger>
        <p>
          The job ends for good. It saves {saved}; {formatMoney(job.cost.accrued)} are spent and stay spent.
        </p>
      </Confirm>
    </>
  );
}
