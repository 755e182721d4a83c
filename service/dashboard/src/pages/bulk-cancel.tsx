import { AlertDialog } from "@base-ui/react/alert-dialog";
import { useState } from "react";
import { explain } from "../api/client";
import { cancel } from "../api/orders";
import type { Job } from "../api/types";
import { useAction } from "../parts/actions";
import { isFinal } from "../parts/basics";
import { InShell, curl } from "../parts/commands";
import { formatMoney, pluralize } from "../parts/format";
import parts from "../parts/parts.module.css";
import css from "./pages.module.css";

type Result = { state: "asking" | "cancelled" } | { state: "refused"; why: string };

/** Cancels several jobs: one question with its effect on cost, and what became of each. */
export function BulkCancel({ jobs, finish }: { jobs: readonly Job[]; finish: () => void }) {
  const [isOpen, setOpen] = useState(false);
  // The jobs of the dialog: the list behind it goes on changing.
  const [asked, setAsked] = useState<readonly Job[]>([]);
  const [results, setResults] = useState<ReadonlyMap<string, Result>>(new Map());
  const unfinished = jobs.filter((job) => !isFinal(job.phase));
  const change = (open: boolean) => {
    if (open) {
      setAsked(unfinished);
      setResults(new Map());
    } else if (results.size > 0) finish();
    setOpen(open);
  };
  const name = `Cancel ${pluralize(unfinished.length, "job")}`;
  useAction(unfinished.length > 0 ? name : null, () => change(true));
  const isBusy = [...results.values()].some((result) => result.state === "asking");
  const isDone = results.size > 0 && !isBusy;
  const tell = (job: Job, result: Result) => setResults((before) => new Map(before).set(job.id, result));
  const act = async () => {
    asked.forEach((job) => tell(job, { state: "asking" }));
    // One after the other: a controller that refuses many requests at once would cancel a part of them.
    for (const job of asked) {
      try {
        await cancel(job.id, null);
        tell(job, { state: "cancelled" });
      } catch (error) {
        tell(job, { state: "refused", why: explain(error) });
      }
    }
  };
  return (
    <AlertDialog.Root open={isOpen} onOpenChange={change}>
      <AlertDialog.Trigger className={`${parts.button} ${parts.danger}`} disabled={unfinished.length === 0}>
        {name}
      </AlertDialog.Trigger>
      <AlertDialog.Portal>
        <AlertDialog.Backdrop className={parts.backdrop} />
        <AlertDialog.Popup className={parts.dialog}>
          <AlertDialog.Title>Cancel {pluralize(asked.length, "job")}?</AlertDialog.Title>
          <AlertDialog.Description render={<div />} className={parts.stack}>
            <p>{costEffect(asked)}</p>
          </AlertDialog.Description>
          <ul className={css.results} tabIndex={0} aria-label="Jobs">
            {asked.map((job) => (
              <li key={job.id} data-result={results.get(job.id)?.state}>
                <strong>{job.name}</strong> <span className={parts.muted}>{job.id.slice(-8)}</span> {describe(job, results.get(job.id))}
              </li>
            ))}
          </ul>
          <InShell
            commands={{
              cli: asked.map((job) => `scavenger cancel ${job.id}`).join("\n"),
              api: asked.map((job) => curl("POST", `/v1/jobs/${job.id}/actions/cancel`)).join("\n"),
            }}
          />
          <p role="status" className={parts.small}>
            {isDone ? summarize(results) : ""}
          </p>
          <div className={parts.actions}>
            <AlertDialog.Close className={parts.button} disabled={isBusy}>
              {isDone ? "Close" : "Keep them"}
            </AlertDialog.Close>
            {!isDone && (
              <button type="button" className={`${parts.button} ${parts.danger}`} disabled={isBusy} onClick={() => void act()}>
                {isBusy ? "Asking…" : `Cancel ${asked.length === 1 ? "it" : `all ${asked.length}`}`}
              </button>
            )}
          </div>
        </AlertDialog.Popup>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}

/** Says what ending jobs saves, as far as their cost is forecast, and what is spent. */
function costEffect(jobs: readonly Job[]): string {
  const dollars = (amount: number) => formatMoney({ amount: amount.toFixed(9), currency: "USD" });
  const spent = jobs.reduce((sum, job) => sum + Number(job.cost.accrued.amount), 0);
  const forecast = jobs.filter((job) => job.cost.forecast !== null);
  const saved = forecast.reduce((sum, job) => sum + Math.max(Number(job.cost.forecast?.amount) - Number(job.cost.accrued.amount), 0), 0);
  const unknown = jobs.length - forecast.length;
  const rest = unknown > 0 ? `; what is left of ${unknown === jobs.length ? "their cost" : `${unknown} others`} is not forecast yet` : "";
  const saving = forecast.length > 0 ? `It saves about ${dollars(saved)}${rest}.` : "What it saves is not forecast yet.";
  return `They end for good. ${saving} ${dollars(spent)} are spent and stay spent.`;
}

function describe(job: Job, result: Result | undefined): string {
  switch (result?.state) {
    case undefined:
      return `${job.phase}, ${formatMoney(job.cost.accrued)} spent`;
    case "asking":
      return "asking…";
    case "cancelled":
      return "✔ will be cancelled";
    case "refused":
      return `✖ ${result.why}`;
  }
}

function summarize(results: ReadonlyMap<string, Result>): string {
  const all = [...results.values()];
  const refused = all.filter((result) => result.state === "refused").length;
  return refused === 0 ? `All ${all.length} are cancelled: their machines end with the next ticks.` : `${all.length - refused} are cancelled, ${refused} were refused.`;
}
