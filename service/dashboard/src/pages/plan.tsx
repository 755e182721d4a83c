import { useMemo, useState, type FormEvent } from "react";
import { useLocation } from "wouter";
import { change, explain, newKey } from "../api/client";
import { queryClient, useApi } from "../api/queries";
import { useSession } from "../api/session";
import type { Job, Plan } from "../api/types";
import { CurveChart } from "../curve/chart";
import { findFront } from "../curve/front";
import { excludedIds } from "../curve/limits";
import { limitsOf, optionsOf } from "../curve/options";
import { CurveStates, LimitStates } from "../curve/states";
import { summarize } from "../curve/summary";
import { OptionTable } from "../curve/table";
import { Facts, Loaded, Moment, Notice, Title } from "../parts/basics";
import { useNow } from "../parts/clock";
import { Confirm } from "../parts/confirm";
import { CopyCommands, curl } from "../parts/commands";
import { formatConfig, formatMoney, formatSeconds, pluralize } from "../parts/format";
import parts from "../parts/parts.module.css";
import css from "./pages.module.css";

const EXAMPLE = `model: {key: digits/mlp, dataset_size: 1437}
target: {metric: accuracy, goal: 0.97, max_epochs: 60}
limits: {max_cost: 1 USD, workers: 1..2, batch: [32, 128]}
run: {command: [python, train.py]}
`;

/** What a job would take and cost, before any money is spent. */
export default function PlanPage({ plan }: { plan: string | null }) {
  return plan === null ? <Draft /> : <Planned id={plan} />;
}

function Draft() {
  const [document, setDocument] = useState("");
  const [refusal, setRefusal] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const [, navigate] = useLocation();
  const send = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setRefusal(null);
    const type = document.trimStart().startsWith("{") ? "application/json" : "application/yaml";
    try {
      const plan = await change<Plan>("POST", "/v1/plans", { text: { content: document, type } });
      navigate(`/plan/${plan.id}`);
    } catch (error) {
      setRefusal(error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <div className={css.head}>
        <Title page="Plan">Plan a job</Title>
        <CopyCommands commands={{ cli: "scavenger plan scavenger.yaml", api: curl("POST", "/v1/plans") }} />
      </div>
      <form className={parts.stack} onSubmit={(event) => void send(event)}>
        <label className={parts.field}>
          <span>Job document, YAML or JSON</span>
          <textarea className={parts.input} rows={16} spellCheck={false} value={document} placeholder={EXAMPLE} aria-invalid={refusal !== null} onChange={(event) => setDocument(event.target.value)} />
        </label>
        {refusal !== null && <Notice tone="bad">{explain(refusal)}</Notice>}
        <div className={parts.row}>
          <button type="submit" className={`${parts.button} ${parts.primary}`} disabled={isBusy || document.trim() === ""}>
            {isBusy ? "Planning…" : "Plan: nothing is spent"}
          </button>
          <button type="button" className={parts.button} onClick={() => setDocument(EXAMPLE)}>
            Take the example
          </button>
        </div>
      </form>
    </>
  );
}

function Planned({ id }: { id: string }) {
  const query = useApi<Plan>(`/v1/plans/${id}`);
  return <Loaded query={query}>{(plan) => <PlanBody plan={plan} />}</Loaded>;
}

function PlanBody({ plan }: { plan: Plan }) {
  const now = useNow();
  const { role } = useSession();
  const [, navigate] = useLocation();
  const [selected, setSelected] = useState<string | null>(null);
  // One key for the page: a second press submits the same job.
  const key = useMemo(newKey, [plan.id]); // eslint-disable-line
  const options = useMemo(() => optionsOf(plan.curve), [plan]);
  const limits = limitsOf(plan.curve);
  const excluded = useMemo(() => excludedIds(options, limits), [options]); // eslint-disable-line
  const front = useMemo(() => findFront(options.filter((option) => !excluded.has(option.id))), [options, excluded]);
  const seconds = (new Date(plan.expires_at).getTime() - now) / 1000;
  const submit = async () => {
    const job = await change<Job>("POST", "/v1/jobs", { body: { plan: plan.id }, key });
    await queryClient.invalidateQueries({ queryKey: ["/v1/jobs"] });
    navigate(`/jobs/${job.id}/curve`);
  };
  return (
    <>
      <div className={css.head}>
        <Title page={`Plan ${plan.name}`}>Plan of {plan.name}</Title>
        <div className={parts.row}>
          <Confirm label="Submit exactly this" title={`Submit ${plan.name}?`} action="Submit" confirm={submit} isPrimary isDisabled={seconds <= 0 || role === "viewer"}>
            <p>
              The job starts machines, which cost money from then on: {plan.cap ? `at most ${formatMoney(plan.cap)}` : "without a limit, since max_cost is not set"}.
            </p>
          </Confirm>
          <CopyCommands commands={{ cli: `scavenger submit --plan ${plan.id}`, api: curl("POST", "/v1/jobs", { plan: plan.id }) }} />
        </div>
      </div>
      <Notice tone={seconds > 0 ? "plain" : "warning"}>{seconds > 0 ? `Holds for ${formatSeconds(seconds)}. Nothing is spent.` : "This plan has expired: plan again."}</Notice>
      <CurveStates job={asJob(plan)} curve={plan.curve} />
      <LimitStates options={options} excluded={excluded} limits={limits} front={front} relax={null} />
      {options.length > 0 && (
        <CurveChart
          frame={plan.curve}
          curve={plan.curve}
          options={options}
          front={front}
          excluded={excluded}
          limits={limits}
          selected={selected}
          select={setSelected}
          changeLimit={null}
          pinned={null}
          actual={null}
          isWhole={false}
          isDegraded={false}
          label={`Cost and time of ${plan.name}`}
        />
      )}
      {options.length > 0 && <p data-summary>{summarize(plan.curve, front, options)}</p>}
      <section className={parts.card} aria-label="Plan">
        <Facts
          facts={[
            ["choice", plan.choice === null ? plan.why : `${formatConfig(plan.choice)}: ${plan.why}`],
            ["search", plan.search === null ? "none is needed" : describeSearch(plan.search)],
            ["earlier jobs", plan.would_reuse ? `the model of ${pluralize(plan.would_reuse, "job")} is reused` : "none of this model"],
            ["cap", plan.cap === null ? "none: max_cost is not set" : `at most ${formatMoney(plan.cap)} can be spent, even if the controller dies`],
            ["prices", plan.prices_as_of ? <span key="p">as of <Moment at={plan.prices_as_of} isAge /></span> : "as the document says"],
            ...plan.checks.map((check): [string, string] => ["check", check]),
          ]}
        />
      </section>
      {options.length > 0 && <OptionTable curve={plan.curve} options={options} excluded={excluded} selected={selected} select={setSelected} name={plan.name} />}
    </>
  );
}

function describeSearch({ probes, seconds, cost }: NonNullable<Plan["search"]>): string {
  const count = pluralize(probes, "probe");
  if (seconds === null || cost === null) return `${count}; their time and their price show once a worker trains`;
  return `${count}, about ${formatSeconds(seconds)} and ${formatMoney(cost)}`;
}

// What the states of a curve ask of a job; a plan has neither ended nor spent.
function asJob(plan: Plan): Pick<Job, "phase" | "elapsed" | "cost" | "finished_at"> {
  const none = { amount: "0", currency: "USD" };
  return { phase: "pending", elapsed: 0, finished_at: plan.curve.is_finished ? plan.created_at : null, cost: { accrued: none, search: none, reserved: none, cap: null, forecast: null } };
}
