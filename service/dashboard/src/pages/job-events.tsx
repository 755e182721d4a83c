import { usePages } from "../api/pages";
import { useApi } from "../api/queries";
import type { Decision, Event, Job, Order } from "../api/types";
import { ListState, Loaded, Moment, isFinal } from "../parts/basics";
import { describeOrder, formatConfig } from "../parts/format";
import parts from "../parts/parts.module.css";
import { useFilters } from "../parts/query";
import { DataTable } from "../parts/table";
import { EventTable, KindFilter } from "./event-table";

/** Each decision with its reason, what was ordered, and all that happened. */
export default function JobEvents({ job }: { job: Job }) {
  const [filters, change] = useFilters();
  const kind = filters.get("kind") ?? "";
  const decisions = useApi<{ decisions: Decision[] }>(`/v1/jobs/${job.id}/decisions?limit=200`);
  const orders = useApi<{ orders: Order[] }>(`/v1/jobs/${job.id}/orders?limit=200`);
  const events = usePages<{ events: Event[]; next_cursor?: string | null }>(`/v1/jobs/${job.id}/events`, new URLSearchParams({ limit: "200", newest: "true" }));
  const found = events.data?.pages.flatMap((page) => page.events) ?? [];
  return (
    <>
      <section className={parts.stack} style={{ gap: "0.4rem" }} aria-label="Decisions">
        <h2>Decisions</h2>
        <Loaded query={decisions}>
          {(page) => (
            <DataTable
              label="Decisions"
              rows={page.decisions}
              rowKey={(decision) => String(decision.number)}
              empty={<p className={parts.muted}>{isFinal(job.phase) ? "None: the job ended before its search did." : "None yet: the search has not ended."}</p>}
              columns={[
                { name: "number", value: (each) => each.number, cell: (each) => each.number, isNumber: true },
                { name: "at", value: (each) => each.at, cell: (each) => <Moment at={each.at} /> },
                { name: "chosen", value: (each) => formatConfig(each.chosen), cell: (each) => formatConfig(each.chosen) },
                { name: "why", value: (each) => each.why, cell: (each) => each.why, isWide: true },
              ]}
            />
          )}
        </Loaded>
      </section>
      <section className={parts.stack} style={{ gap: "0.4rem" }} aria-label="Orders">
        <h2>Orders</h2>
        <Loaded query={orders}>
          {(page) => (
            <DataTable
              label="Orders"
              rows={page.orders}
              rowKey={(order) => String(order.number)}
              empty={<p className={parts.muted}>None: the job follows its objective.</p>}
              columns={[
                { name: "number", value: (each) => each.number, cell: (each) => each.number, isNumber: true },
                { name: "at", value: (each) => each.at, cell: (each) => <Moment at={each.at} /> },
                { name: "order", value: describeOrder, cell: describeOrder },
                { name: "state", value: (each) => each.state, cell: (each) => each.state },
                { name: "told", value: (each) => each.told, cell: (each) => each.told || each.reason, isWide: true },
                { name: "by", value: (each) => each.by, cell: (each) => each.by },
              ]}
            />
          )}
        </Loaded>
      </section>
      <section className={parts.stack} style={{ gap: "0.4rem" }} aria-label="Events">
        <div className={parts.row}>
          <h2>Events</h2>
          <KindFilter events={found} kind={kind} choose={(chosen) => change({ kind: chosen })} />
        </div>
        <ListState list={events} />
        {events.data && (
          <EventTable
            events={(kind ? found.filter((event) => event.kind === kind) : found).toReversed()}
            more={
              events.hasNextPage && (
                <button type="button" className={parts.button} onClick={() => void events.fetchNextPage()}>
                  More events
                </button>
              )
            }
          />
        )}
      </section>
    </>
  );
}
