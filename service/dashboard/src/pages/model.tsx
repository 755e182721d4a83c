import { Link, useLocation } from "wouter";
import { change } from "../api/client";
import { queryClient, useApi } from "../api/queries";
import { useSession } from "../api/session";
import type { Forecast, ModelDetail } from "../api/types";
import { Facts, Loaded, Moment, Money, Notice, PhaseChip, Title } from "../parts/basics";
import { Confirm } from "../parts/confirm";
import { CopyCommands, curl } from "../parts/commands";
import { UNKNOWN, formatConfig, formatMoney, formatNumber, formatPercent } from "../parts/format";
import parts from "../parts/parts.module.css";
import { DataTable, type Column } from "../parts/table";
import css from "./pages.module.css";
import { ForecastScatter } from "./scatter";

/** One stored model: its laws, and what was forecast beside what came of it. */
export default function ModelPage({ signature }: { signature: string }) {
  const path = `/v1/models/${encodeURIComponent(signature)}`;
  const query = useApi<ModelDetail>(path);
  const { role } = useSession();
  const [, navigate] = useLocation();
  const forget = async () => {
    await change("POST", `${path}/actions/forget`, {});
    await queryClient.invalidateQueries({ queryKey: ["/v1/models"] });
    navigate("/models");
  };
  return (
    <Loaded query={query}>
      {(model) => (
        <>
          <div className={css.head}>
            <Title page={model.model_key}>{model.model_key}</Title>
            <div className={parts.row}>
              {(role === "operator" || role === "admin") && (
                <Confirm label="Forget" title={`Forget ${model.model_key}?`} action="Forget" confirm={forget} isDanger commands={{ cli: `scavenger model forget '${model.signature}'`, api: curl("POST", `${path}/actions/forget`) }}>
                  <p>The next job of this signature searches anew, which costs its probes. Running jobs keep what they chose.</p>
                </Confirm>
              )}
              <CopyCommands commands={{ cli: `scavenger model show '${model.signature}'`, api: curl("GET", path) }} />
            </div>
          </div>
          <div className={css.two}>
            <section className={parts.card} aria-label="Laws">
              <h2>Laws</h2>
              <Facts
                facts={[
                  ["signature", <code key="s">{model.signature}</code>],
                  ["jobs", model.jobs],
                  ["reference batch", model.reference_batch],
                  ["epochs to target", model.laws.law],
                  ["noise scale (φ)", model.laws.noise_scale === null ? UNKNOWN : `${formatNumber(model.laws.noise_scale)} samples`],
                  ["mean error of τ", formatPercent(model.laws.mean_relative_error)],
                  ...Object.entries(model.epochs_to_target).map(([target, epochs]): [string, string] => [target, `${formatNumber(epochs)} epochs`]),
                  ["changed", <Moment key="u" at={model.updated_at} />],
                ]}
              />
            </section>
            <section className={parts.card} aria-label="Calibration">
              <h2>Forecasts against what came</h2>
              <p>
                {model.calibration
                  ? `${formatPercent(model.calibration.coverage)} of ${model.calibration.forecasts} jobs ended within the span that was forecast; 80 % are promised.`
                  : "No forecast can be judged yet."}
              </p>
              {model.calibration?.is_degraded && (
                <Notice tone="warning">
                  <span data-state="degraded">Too few: read curves of this model as a rough guide. Where data or script have changed, forget the model, or give the next job another key.</span>
                </Notice>
              )}
              <ForecastScatter forecasts={model.forecasts} />
            </section>
          </div>
          <section className={parts.stack} style={{ gap: "0.4rem" }} aria-label="Forecasts">
            <h2>Jobs</h2>
            <DataTable label="Forecasts" rows={model.forecasts} columns={COLUMNS} rowKey={(each) => each.job} csv={`${model.signature}.csv`} />
          </section>
        </>
      )}
    </Loaded>
  );
}

const COLUMNS: Column<Forecast>[] = [
  { name: "job", value: (f) => f.name, cell: (f) => <Link href={`/jobs/${f.job}/curve`}>{f.name}</Link> },
  { name: "phase", value: (f) => f.phase, cell: (f) => <PhaseChip phase={f.phase} /> },
  { name: "chosen", value: (f) => formatConfig(f.chosen), cell: (f) => formatConfig(f.chosen) },
  { name: "due", value: (f) => f.due_from, cell: (f) => <><Moment at={f.due_from} /> – <Moment at={f.due_until} /></> },
  { name: "ended", value: (f) => f.finished_at, cell: (f) => <Moment at={f.finished_at} /> },
  { name: "within", value: (f) => String(f.is_within), cell: (f) => (f.is_within === null ? UNKNOWN : f.is_within ? "✔ within" : "✖ outside") },
  { name: "forecast", value: (f) => Number(f.cost?.amount ?? Number.NaN), cell: (f) => (f.cost ? `${formatMoney(f.cost)} (${formatMoney(f.cost_low)}–${formatMoney(f.cost_high)})` : UNKNOWN), isNumber: true },
  { name: "spent", value: (f) => Number(f.spent.amount), cell: (f) => <Money value={f.spent} />, isNumber: true },
];
