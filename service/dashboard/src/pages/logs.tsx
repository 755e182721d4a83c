import { useEffect, useMemo, useRef } from "react";
import { useApi } from "../api/queries";
import type { Job, LogPage, Machine } from "../api/types";
import { Loaded, Notice, isFinal } from "../parts/basics";
import { useNow } from "../parts/clock";
import { CopyCommands, curl } from "../parts/commands";
import { formatMoment, pluralize } from "../parts/format";
import parts from "../parts/parts.module.css";
import { usePreferences } from "../parts/preferences";
import { useFilters } from "../parts/query";
import css from "./pages.module.css";

const FOLLOW_INTERVAL = 2_000;
const TAIL = 500;

/** The newest lines that a job's machines printed, of all of them or of one. */
export default function Logs({ job }: { job: Job }) {
  const [filters, change] = useFilters();
  const machine = filters.get("machine") ?? "";
  const query = new URLSearchParams({ tail: String(TAIL), ...(machine ? { machine } : {}) });
  const path = `/v1/jobs/${job.id}/logs?${query}`;
  const logs = useApi<LogPage>(path, isFinal(job.phase) ? undefined : FOLLOW_INTERVAL);
  const machines = useApi<{ machines: Machine[] }>(`/v1/machines?job=${job.id}&limit=200`);
  return (
    <>
      <div className={parts.row}>
        <label className={parts.row}>
          <span className={parts.muted}>Machine</span>
          <select className={parts.input} style={{ width: "auto" }} value={machine} onChange={(event) => change({ machine: event.target.value || null })}>
            <option value="">all</option>
            {(machines.data?.data.machines ?? []).map((each) => (
              <option key={each.id} value={each.id}>
                {each.id} ({each.role})
              </option>
            ))}
          </select>
        </label>
        <CopyCommands commands={{ cli: `scavenger logs ${job.id} -f${machine ? ` --machine ${machine}` : ""}`, api: curl("GET", path) }} />
      </div>
      <Loaded query={logs}>{(page) => <Lines page={page} isEnded={isFinal(job.phase)} />}</Loaded>
    </>
  );
}

function Lines({ page, isEnded }: { page: LogPage; isEnded: boolean }) {
  const box = useRef<HTMLPreElement>(null);
  const isAtEnd = useRef(true);
  const now = useNow();
  const { isUtc } = usePreferences();
  // Machines send what they have in batches, one after the other.
  const lines = useMemo(() => page.lines.toSorted((one, other) => Date.parse(one.at) - Date.parse(other.at) || one.number - other.number), [page]);
  useEffect(() => {
    if (isAtEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [page]);
  if (page.lines.length === 0) return <Notice>{isEnded ? "No line: the command printed nothing, or its lines are no longer kept." : "No line yet: machines send what the command prints every few seconds."}</Notice>;
  return (
    <>
      {page.dropped > 0 && <Notice tone="warning">{pluralize(page.dropped, "line")} were dropped: the machines printed faster than lines are sent.</Notice>}
      <pre
        ref={box}
        className={css.log}
        tabIndex={0}
        role="log"
        aria-label="Log lines"
        onScroll={(event) => {
          const { scrollHeight, scrollTop, clientHeight } = event.currentTarget;
          isAtEnd.current = scrollHeight - scrollTop - clientHeight < 30;
        }}
      >
        {lines.map((line) => (
          <div key={`${line.machine} ${line.number}`} data-line={line.number}>
            <span>
              {formatMoment(line.at, isUtc, now)} {line.machine.slice(-8)}{" "}
            </span>
            {line.text}
          </div>
        ))}
      </pre>
    </>
  );
}
