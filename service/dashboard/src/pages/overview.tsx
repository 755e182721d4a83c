import { Link } from "wouter";
import { useApi, useCurve } from "../api/queries";
import type { Curve, Event, Job } from "../api/types";
import { CurveChart } from "../curve/chart";
import { findFront } from "../curve/front";
import { excludedIds } from "../curve/limits";
import { configId, limitsOf, optionsOf } from "../curve/options";
import { summarize } from "../curve/summary";
import { Facts, Loaded, Moment, Money } from "../parts/basics";
import { UNKNOWN, formatConfig, formatMoney, formatNumber, formatPercent, formatSeconds, pluralize } from "../parts/format";
import { Term } from "../parts/glossary";
import parts from "../parts/parts.module.css";
import { Eta } from "./jobs";
import css from "./pages.module.css";
import { StripTimeline } from "./strip";

/** How a job stands: time, money, its curve in small, and what happened. */
export function Overview({ job }: { job: Job }) {
  const curve = useCurve(job.id, null);
  const events = useApi<{ events: Event[] }>(`/v1/jobs/${job.id}/events?limit=200&newest=true`);
  return (
    <>
      <FourNumbers job={job} />
      <div className={css.two}>
        <section className={parts.card} aria-label="Curve">
          <div className={css.head}>
            <h2>Cost and time</h2>
            <Link href={`/jobs/${job.id}/curve`} className={parts.button ?? ""}>
              Open the curve
            </Link>
          </div>
          <Loaded query={curve}>{(found) => <MiniCurve curve={found} />}</Loaded>
        </section>
        <section className={parts.card} aria-label="State">
          <h2>State</h2>
          <State job={job} />
        </section>
      </div>
      <section className={parts.card} aria-label="Timeline">
        <h2>What happened</h2>
        <Loaded query={events}>
          {(found) => <StripTimeline job={job} events={found.events} resizes={curve.data?.data.resizes ?? []} probes={curve.data?.data.probes ?? []} />}
        </Loaded>
      </section>
    </>
  );
}

function FourNumbers({ job }: { job: Job }) {
  const { accrued, reserved, cap, forecast } = job.cost;
  const left = cap ? Number(cap.amount) - Number(accrued.amount) : null;
  return (
    <div className={css.four}>
      <Figure name={job.finished_at ? "took" : "time left"}>
        <Eta job={job} />
      </Figure>
      <Figure name="cost now" note={reserved ? `and ${formatMoney(reserved)} reserved` : ""} data={accrued.amount}>
        <Money value={accrued} />
      </Figure>
      <Figure name="forecast at the end" note={forecast ? "an estimate" : ""} data={forecast?.amount}>
        {forecast ? "≈ " : ""}
        <Money value={forecast} />
      </Figure>
      <Figure name="left of the cap" note={cap ? `of ${formatMoney(cap)}` : "no cap was set"}>
        {left === null ? UNKNOWN : formatMoney({ amount: left.toFixed(9), currency: cap?.currency ?? "USD" })}
      </Figure>
    </div>
  );
}

function Figure({ name, note, data, children }: { name: string; note?: string; data?: string | undefined; children: React.ReactNode }) {
  return (
    <div data-figure={name} data-amount={data}>
      <div className={parts.muted}>{name}</div>
      <div className={css.figure}>{children}</div>
      <div className={`${parts.muted} ${parts.small}`}>{note}</div>
    </div>
  );
}

function MiniCurve({ curve }: { curve: Curve }) {
  const options = optionsOf(curve);
  if (options.length === 0) return <p className={parts.muted}>{curve.why || "Nothing is known yet."}</p>;
  const limits = limitsOf(curve);
  const excluded = excludedIds(options, limits);
  const front = findFront(options.filter((option) => !excluded.has(option.id)));
  return (
    <>
      <CurveChart
        frame={curve}
        curve={curve}
        options={options}
        front={front}
        excluded={excluded}
        limits={limits}
        selected={null}
        changeLimit={null}
        pinned={null}
        actual={null}
        isWhole={false}
        isDegraded={curve.calibration?.is_degraded ?? false}
        label="Cost and time of the options"
      />
      <p className={`${parts.muted} ${parts.small}`}>{summarize(curve, front, options)}</p>
    </>
  );
}

function State({ job }: { job: Job }) {
  const { indicators, progress } = job;
  const goal = progress.expected_epochs ?? progress.max_epochs;
  const metrics = Object.entries(progress.metrics).map(([name, value]) => `${name} ${formatNumber(value)}`);
  return (
    <Facts
      facts={[
        ["id", <code key="id">{job.id}</code>],
        ["model", <Link key="model" href="/models">{job.model_key}</Link>],
        ["wanted", formatConfig(job.target)],
        ["applied", `${formatConfig(job.applied)}, ${pluralize(job.workers_alive, "worker")} alive`],
        ["preference", job.preference === "pinned" ? `pinned ${formatConfig(job.pinned)}` : (job.preference ?? UNKNOWN)],
        ["progress", `${formatNumber(progress.epochs)} of ${progress.expected_epochs === null ? "at most " : "≈ "}${formatNumber(goal)} epochs, ${pluralize(progress.iteration, "iteration")}`],
        ["metrics", metrics.join(", ") || UNKNOWN],
        [<Term key="tau" word="τ">iteration (τ)</Term>, indicators ? `${formatSeconds(indicators.step_time)} = ${formatSeconds(indicators.compute_time)} computing + ${formatSeconds(indicators.sync_time)} synchronising` : UNKNOWN],
        [<Term key="gamma" word="γ">noise (γ)</Term>, formatNumber(indicators?.noise)],
        [<Term key="phi" word="φ">noise scale (φ)</Term>, indicators?.noise_scale ? `${formatNumber(indicators.noise_scale)} samples` : UNKNOWN],
        ["search", job.search || UNKNOWN],
        ["search cost", `${formatMoney(job.cost.search)}${Number(job.cost.accrued.amount) > 0 ? `, ${formatPercent(Number(job.cost.search.amount) / Number(job.cost.accrued.amount))} of what is spent` : ""}`],
        ["checkpoints", job.checkpoints ?? "on each machine"],
        ["submitted", <Moment key="at" at={job.created_at} />],
      ]}
    />
  );
}

export const currentId = (job: Job) => configId(job.applied);
