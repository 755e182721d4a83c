import { Link } from "wouter";
import { usePages } from "../api/pages";
import { useApi } from "../api/queries";
import { useSession } from "../api/session";
import type { Machine, Sweep } from "../api/types";
import { Chip, ListState, Moment, Money, Notice, Title, type Tone } from "../parts/basics";
import { useNow } from "../parts/clock";
import { CopyCommands, curl } from "../parts/commands";
import { UNKNOWN, formatAge, formatSeconds, pluralize } from "../parts/format";
import parts from "../parts/parts.module.css";
import { projectQuery, useProject } from "../parts/project";
import { useFilters } from "../parts/query";
import { DataTable, type Column } from "../parts/table";
import css from "./pages.module.css";

const STATES = ["intended", "launched", "ending", "gone"];
const REFRESH = 5_000;

/** Every machine: what it is for, what it costs, until when it is paid, and machines that belong to no job. */
export default function FleetPage() {
  const [filters, change] = useFilters();
  const { role } = useSession();
  const state = filters.get("state") ?? "";
  const project = useProject();
  const query = new URLSearchParams({ limit: "200", ...(state ? { state } : {}), ...projectQuery(project) });
  const list = usePages<{ machines: Machine[]; next_cursor: string | null }>("/v1/machines", query, REFRESH);
  const machines = list.data?.pages.flatMap((page) => page.machines) ?? [];
  return (
    <>
      <div className={css.head}>
        <Title page="Fleet">Fleet</Title>
        <div className={parts.row}>
          <label className={parts.row}>
            <span className={parts.muted}>State</span>
            <select className={parts.input} style={{ width: "auto" }} value={state} onChange={(event) => change({ state: event.target.value || null })}>
              <option value="">all</option>
              {STATES.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          </label>
          <CopyCommands commands={{ api: curl("GET", `/v1/machines?${query}`) }} />
        </div>
      </div>
      <ListState list={list} />
      {list.data && (
        <DataTable
          label="Machines"
          rows={machines}
          columns={COLUMNS}
          rowKey={(machine) => machine.id}
          rowData={(machine) => ({ "data-machine": machine.id, "data-state": machine.state })}
          csv="machines.csv"
          empty={<Notice>{project === null ? "No machine exists: none costs money." : `No machine of ${project} is listed.`}</Notice>}
          more={
            list.hasNextPage && (
              <button type="button" className={parts.button} onClick={() => void list.fetchNextPage()}>
                More machines
              </button>
            )
          }
        />
      )}
      {role === "admin" && <Sweeps />}
    </>
  );
}

const TONES: Record<string, Tone> = { launched: "good", ending: "warning" };

const COLUMNS: Column<Machine>[] = [
  { name: "machine", value: (m) => m.id, cell: (m) => <code>{m.id}</code> },
  { name: "job", value: (m) => m.job, cell: (m) => <Link href={`/jobs/${m.job}`}>{m.job.slice(-8)}</Link> },
  { name: "role", value: (m) => m.role, cell: (m) => m.role },
  { name: "state", value: (m) => m.state, cell: (m) => <Chip tone={TONES[m.state] ?? "plain"} title={m.why}>{m.state}</Chip> },
  { name: "where", value: (m) => `${m.cloud} ${m.zone}`, cell: (m) => [m.cloud, m.zone].filter(Boolean).join(" ") },
  { name: "type", value: (m) => m.machine_type, cell: (m) => `${m.machine_type}${m.market === "spot" ? ", spot" : ""}` },
  { name: "per hour", value: (m) => Number(m.price_per_hour.amount), cell: (m) => <Money value={m.price_per_hour} />, isNumber: true },
  { name: "paid until", value: (m) => m.prepaid_until, cell: (m) => (m.gone_at ? UNKNOWN : <Countdown until={m.prepaid_until} />), isNumber: true },
  { name: "lease", value: (m) => m.lease_age, cell: (m) => (m.gone_at ? UNKNOWN : formatSeconds(m.lease_age)), isNumber: true },
  { name: "launched", value: (m) => m.launched_at, cell: (m) => <Moment at={m.launched_at} isAge />, isNumber: true },
  { name: "why", value: (m) => m.why, cell: (m) => m.why, isWide: true },
];

function Countdown({ until }: { until: string | null }) {
  const now = useNow();
  return <span title={until ?? ""}>{formatAge(until, now)}</span>;
}

function Sweeps() {
  const sweeps = useApi<{ sweeps: Sweep[] }>("/v1/sweeps?limit=5");
  const newest = sweeps.data?.data.sweeps[0];
  if (!newest) return null;
  return (
    <section className={parts.card} aria-label="Garbage collection">
      <h2>Garbage collection</h2>
      <p>
        <Moment at={newest.at} isAge />: {pluralize(newest.shown, "machine")} of this installation seen, {newest.ended} terminated, {newest.suspects.length} without a job.
      </p>
      {newest.tripped && (
        <Notice tone="bad">
          {newest.tripped} Look at them and confirm with <code>scavenger admin sweep --confirm</code>.
        </Notice>
      )}
      {newest.suspects.length > 0 && (
        <DataTable
          label="Machines without a job"
          rows={newest.suspects}
          rowKey={(each) => each.machine}
          columns={[
            { name: "machine", value: (each) => each.machine, cell: (each) => <code>{each.machine}</code> },
            { name: "fate", value: (each) => each.fate, cell: (each) => each.fate },
            { name: "reason", value: (each) => each.reason, cell: (each) => each.reason, isWide: true },
          ]}
        />
      )}
    </section>
  );
}
