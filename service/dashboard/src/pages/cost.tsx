import { Link } from "wouter";
import { useApi } from "../api/queries";
import type { CostReport } from "../api/types";
import { Bar, Loaded, Moment, Money, Title } from "../parts/basics";
import { CopyCommands, curl } from "../parts/commands";
import { formatPercent } from "../parts/format";
import parts from "../parts/parts.module.css";
import { projectOption, projectQuery, useProject } from "../parts/project";
import { useFilters } from "../parts/query";
import { DataTable } from "../parts/table";
import css from "./pages.module.css";

const GROUPS = ["job", "model", "project", "cloud", "day"] as const;

/** What machines cost, from the ledger, by what a person asks. */
export default function CostPage() {
  const [filters, change] = useFilters();
  const by = filters.get("by") ?? "job";
  const since = filters.get("since");
  const project = useProject();
  const query = new URLSearchParams({ by, limit: "200", ...(since ? { since } : {}), ...projectQuery(project) });
  const report = useApi<CostReport>(`/v1/cost?${query}`);
  return (
    <>
      <div className={css.head}>
        <Title page="Cost">Cost</Title>
        <CopyCommands commands={{ cli: `scavenger cost --by ${by}${since ? ` --since ${since.slice(0, 10)}` : ""}${projectOption(project)}`, api: curl("GET", `/v1/cost?${query}`) }} />
      </div>
      <div className={parts.row}>
        <div className={parts.toggles} role="group" aria-label="By">
          {GROUPS.map((group) => (
            <button key={group} type="button" className={parts.button} aria-pressed={group === by} onClick={() => change({ by: group })}>
              by {group}
            </button>
          ))}
        </div>
        <label className={parts.row}>
          <span className={parts.muted}>Since</span>
          <input
            type="date"
            className={parts.input}
            style={{ width: "auto" }}
            value={since?.slice(0, 10) ?? ""}
            onChange={(event) => change({ since: event.target.value ? `${event.target.value}T00:00:00Z` : null })}
          />
        </label>
      </div>
      <Loaded query={report}>
        {(found) => {
          const total = Number(found.total.amount);
          return (
            <>
              <div className={css.four}>
                <div data-figure="total" data-amount={found.total.amount}>
                  <div className={parts.muted}>spent</div>
                  <div className={css.figure}>
                    <Money value={found.total} />
                  </div>
                  <div className={`${parts.muted} ${parts.small}`}>
                    until <Moment at={found.until} />; machines that exist cost more from then on
                  </div>
                </div>
              </div>
              <DataTable
                label={`Cost by ${found.by}`}
                rows={found.entries}
                rowKey={(entry) => entry.key}
                csv={`cost-by-${found.by}.csv`}
                columns={[
                  { name: found.by, value: (e) => e.name || e.key, cell: (e) => (found.by === "job" ? <Link href={`/jobs/${e.key}`}>{e.name || e.key}</Link> : e.name || e.key) },
                  { name: "cost", value: (e) => Number(e.cost.amount), cell: (e) => <Money value={e.cost} />, isNumber: true },
                  {
                    name: "share",
                    value: (e) => (total ? Number(e.cost.amount) / total : null),
                    cell: (e) => (total ? <Bar share={Number(e.cost.amount) / total} label={`${formatPercent(Number(e.cost.amount) / total)} of all`} /> : ""),
                  },
                ]}
              />
              {(found.not_included ?? []).length > 0 && (
                <section className={parts.card} aria-label="Not included">
                  <h2>Not included</h2>
                  <ul>
                    {found.not_included?.map((each) => (
                      <li key={each}>{each}</li>
                    ))}
                  </ul>
                </section>
              )}
            </>
          );
        }}
      </Loaded>
    </>
  );
}
