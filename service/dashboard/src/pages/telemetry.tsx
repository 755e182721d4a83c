import { useMemo, useState } from "react";
import { useApi } from "../api/queries";
import type { Job, Series, Telemetry } from "../api/types";
import { Loaded, Moment, Notice, isFinal } from "../parts/basics";
import { CopyCommands, curl } from "../parts/commands";
import { formatNumber, pluralize } from "../parts/format";
import parts from "../parts/parts.module.css";
import { useFilters } from "../parts/query";
import { DataTable } from "../parts/table";
import css from "./telemetry.module.css";
import { Plot, toSeconds } from "./plot";

// At most eight charts: more freeze a browser and are read by few.
const MOST_CHARTS = 8;
const GROUPS: [title: string, names: string[]][] = [
  ["Loss", ["loss"]],
  ["Iteration (τ): computing and synchronising", ["compute_time", "sync_time"]],
  ["Noise (γ)", ["noise"]],
  ["Noise scale (φ)", ["noise_scale"]],
  ["Throughput", ["samples_per_second"]],
  ["Workers (K)", ["workers"]],
  ["Global batch (B)", ["global_batch"]],
];
const REFRESH = 5_000;
const POINTS = 1000;

/** Measured series of a job: buckets of least and greatest values, made by the controller. */
export default function TelemetryView({ job }: { job: Job }) {
  const [filters, change] = useFilters();
  const [isTable, setTable] = useState(false);
  // Of the metrics that a job logs, the controller keeps a series of its target's only.
  const metrics = [job.spec.target?.metric].filter((name) => name !== undefined && name !== "loss") as string[];
  const groups = useMemo(() => [...GROUPS, ...metrics.map((name): [string, string[]] => [name, [name]])].slice(0, MOST_CHARTS), [metrics.join()]); // eslint-disable-line
  const query = new URLSearchParams({ series: groups.flatMap(([, names]) => names).join(","), points: String(POINTS) });
  for (const name of ["from", "to"]) {
    const value = filters.get(name);
    if (value) query.set(name, value);
  }
  const isZoomed = query.has("from");
  // Else the series of an ended job would go on until now.
  if (!query.has("to") && job.finished_at) query.set("to", job.finished_at);
  const path = `/v1/jobs/${job.id}/telemetry`;
  const telemetry = useApi<Telemetry>(`${path}?${query}`, isFinal(job.phase) || isZoomed ? undefined : REFRESH);
  const zoom = (from: number, to: number) => change({ from: new Date(from * 1000).toISOString(), to: new Date(to * 1000).toISOString() });
  return (
    <>
      <div className={parts.row}>
        <p className={parts.muted}>Drag over a chart to zoom into it.</p>
        {isZoomed && (
          <button type="button" className={parts.button} onClick={() => change({ from: null, to: null })}>
            The whole job
          </button>
        )}
        <label className={parts.row}>
          <input type="checkbox" checked={isTable} onChange={(event) => setTable(event.target.checked)} /> as a table
        </label>
        <a className={parts.button} href={`${path}.csv?${query}`} download>
          CSV
        </a>
        <CopyCommands commands={{ cli: `scavenger export ${job.id} telemetry --to tensorboard`, api: curl("GET", `${path}?${query}`) }} />
      </div>
      <Loaded query={telemetry}>
        {(found) => {
          const named = new Map(found.series.map((each) => [each.name, each]));
          const shown = groups
            .map(([title, names]) => ({ title, series: names.flatMap((name) => named.get(name) ?? []).filter((each) => each.at.length > 0) }))
            .filter((group) => group.series.length > 0);
          if (shown.length === 0) return <Notice>Nothing is measured yet: the first iterations of a worker bring the first points.</Notice>;
          const dropped = found.iterations_from && (
            <Notice>
              <span>
                Iterations before <Moment at={found.iterations_from} /> are no longer kept: each point before it is the mean of a settled probe.
              </span>
            </Notice>
          );
          return (
            <>
              {dropped}
              {isTable ? (
                <SeriesTable series={shown.flatMap((group) => group.series)} />
              ) : (
                <div className={css.charts}>
                  {shown.map((group) => (
                    <section key={group.title} className={parts.card} aria-label={group.title} data-chart={group.series[0]?.name}>
                      <h2>{group.title}</h2>
                      <NonFinite series={group.series} />
                      <Plot series={group.series} zoom={zoom} sync={job.id} />
                    </section>
                  ))}
                </div>
              )}
            </>
          );
        }}
      </Loaded>
    </>
  );
}

function NonFinite({ series }: { series: readonly Series[] }) {
  const wrong = series.filter((each) => each.nonfinite > 0);
  if (wrong.length === 0) return null;
  return <Notice tone="warning">⚠ {wrong.map((each) => `${pluralize(each.nonfinite, "value")} of ${each.name} not finite`).join(", ")}: the line has gaps there.</Notice>;
}

function SeriesTable({ series }: { series: readonly Series[] }) {
  const rows = useMemo(
    () => series.flatMap((each) => each.at.map((at, index) => ({ name: each.name, at: toSeconds(at), low: each.low[index] ?? null, high: each.high[index] ?? null, unit: each.unit }))),
    [series],
  );
  return (
    <DataTable
      label="Series"
      rows={rows}
      rowKey={(row) => `${row.name} ${row.at}`}
      csv="telemetry.csv"
      columns={[
        { name: "series", value: (row) => row.name, cell: (row) => row.name },
        { name: "at", value: (row) => row.at, cell: (row) => new Date(row.at * 1000).toISOString() },
        { name: "least", value: (row) => row.low, cell: (row) => formatNumber(row.low), isNumber: true },
        { name: "most", value: (row) => row.high, cell: (row) => formatNumber(row.high), isNumber: true },
        { name: "unit", value: (row) => row.unit, cell: (row) => row.unit },
      ]}
    />
  );
}
