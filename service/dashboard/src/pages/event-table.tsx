import { Link } from "wouter";
import type { Event } from "../api/types";
import { Moment } from "../parts/basics";
import parts from "../parts/parts.module.css";
import { DataTable, type Column } from "../parts/table";

const COLUMNS: Column<Event>[] = [
  { name: "at", value: (event) => event.at, cell: (event) => <Moment at={event.at} /> },
  { name: "kind", value: (event) => event.kind, cell: (event) => event.kind },
  {
    name: "what",
    value: (event) => event.message,
    cell: (event) => (
      <>
        {event.message}
        {Object.keys(event.data).length > 0 && (
          <details className={parts.small}>
            <summary>inputs</summary>
            <pre>{JSON.stringify(event.data, null, 1)}</pre>
          </details>
        )}
      </>
    ),
    isWide: true,
  },
];

const JOB: Column<Event> = {
  name: "job",
  value: (event) => event.job ?? "",
  cell: (event) => (event.job ? <Link href={`/jobs/${event.job}`}>{event.job.slice(-8)}</Link> : ""),
};

export function EventTable({ events, withJob = false, more }: { events: readonly Event[]; withJob?: boolean; more?: React.ReactNode }) {
  return (
    <DataTable
      label="Events"
      rows={events}
      columns={withJob ? [COLUMNS[0] as Column<Event>, JOB, ...COLUMNS.slice(1)] : COLUMNS}
      rowKey={(event) => String(event.sequence)}
      rowData={(event) => ({ "data-event": event.kind })}
      csv="events.csv"
      more={more}
    />
  );
}

/** The kinds among events, for a filter. */
export function KindFilter({ events, kind, choose }: { events: readonly Event[]; kind: string; choose: (kind: string | null) => void }) {
  const kinds = [...new Set([...events.map((event) => event.kind), ...(kind ? [kind] : [])])].toSorted();
  return (
    <label className={parts.row}>
      <span className={parts.muted}>Kind</span>
      <select className={parts.input} style={{ width: "auto" }} value={kind} onChange={(event) => choose(event.target.value || null)}>
        <option value="">all</option>
        {kinds.map((each) => (
          <option key={each}>{each}</option>
        ))}
      </select>
    </label>
  );
}
