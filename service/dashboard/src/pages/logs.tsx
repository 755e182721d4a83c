import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { get } from "../api/client";
import { followLines } from "../api/lines";
import { useApi } from "../api/queries";
import type { Job, LogLine, LogPage, Machine } from "../api/types";
import { Loaded, Notice, isFinal } from "../parts/basics";
import { useNow } from "../parts/clock";
import { CopyCommands, curl } from "../parts/commands";
import { formatMoment, pluralize } from "../parts/format";
import parts from "../parts/parts.module.css";
import { usePreferences } from "../parts/preferences";
import { useFilters } from "../parts/query";
import css from "./pages.module.css";

const POLL_INTERVAL = 2_000;
const TAIL = 500;
const MOST_SHOWN = 2_000;

/** The newest lines that a job's machines printed, of all of them or of one, as they come. */
export default function Logs({ job }: { job: Job }) {
  const [filters, change] = useFilters();
  const machine = filters.get("machine") ?? "";
  const query = new URLSearchParams({ tail: String(TAIL), ...(machine ? { machine } : {}) });
  const path = `/v1/jobs/${job.id}/logs?${query}`;
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
      <FollowedLines key={path} path={path} job={job} machine={machine} />
    </>
  );
}

function FollowedLines({ path, job, machine }: { path: string; job: Job; machine: string }) {
  const isEnded = isFinal(job.phase);
  const [isPaused, setPaused] = useState(false);
  const [isLive, setLive] = useState(false);
  const [streamed, setStreamed] = useState<{ lines: LogLine[]; dropped: number }>({ lines: [], dropped: 0 });
  // Not below the path of the job, all of which is asked for again whenever the job moves.
  const page = useQuery({
    queryKey: ["lines", path, isEnded],
    queryFn: ({ signal }) => get<LogPage>(path, signal),
    staleTime: 0,
    ...(isEnded || isLive || isPaused ? {} : { refetchInterval: POLL_INTERVAL }),
  });
  const lines = useMemo(() => {
    const found = new Map([...(page.data?.data.lines ?? []), ...streamed.lines].map((line) => [line.number, line]));
    // Machines send what they have in batches, one after the other.
    return [...found.values()].toSorted((one, other) => Date.parse(one.at) - Date.parse(other.at) || one.number - other.number).slice(-MOST_SHOWN);
  }, [page.data, streamed]);
  const isLoaded = page.data !== undefined;
  const last = useRef(0);
  last.current = lines.reduce((most, line) => Math.max(most, line.number), 0);
  useEffect(() => {
    if (!isLoaded || isEnded || isPaused) return undefined;
    return followLines(
      () => `/v1/jobs/${job.id}/logs?${new URLSearchParams({ after: String(last.current), ...(machine ? { machine } : {}) })}`,
      (arrived, dropped) => setStreamed((before) => ({ lines: [...before.lines, ...arrived].slice(-MOST_SHOWN), dropped: Math.max(dropped, before.dropped) })),
      setLive,
    );
  }, [isLoaded, isEnded, isPaused, job.id, machine]);
  return (
    <Loaded query={page}>
      {(found) => (
        <>
          {!isEnded && (
            <div className={parts.row}>
              <button type="button" className={parts.button} aria-pressed={isPaused} onClick={() => setPaused(!isPaused)}>
                {isPaused ? "Go on" : "Pause lines"}
              </button>
              <span className={parts.muted} role="status" data-lines={isPaused ? "paused" : isLive ? "live" : "polling"}>
                {isPaused ? "Paused: what is printed meanwhile comes when you go on." : isLive ? "● live" : "◍ asks every 2 s"}
              </span>
            </div>
          )}
          <Lines lines={lines} dropped={Math.max(found.dropped, streamed.dropped)} isEnded={isEnded} />
        </>
      )}
    </Loaded>
  );
}

function Lines({ lines, dropped, isEnded }: { lines: readonly LogLine[]; dropped: number; isEnded: boolean }) {
  const box = useRef<HTMLPreElement>(null);
  const [isAtEnd, setAtEnd] = useState(true);
  const now = useNow();
  const { isUtc } = usePreferences();
  const scrollToEnd = () => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  };
  useEffect(() => {
    if (isAtEnd) scrollToEnd();
  }, [lines]); // eslint-disable-line
  if (lines.length === 0) return <Notice>{isEnded ? "No line: the command printed nothing, or its lines are no longer kept." : "No line yet: machines send what the command prints every few seconds."}</Notice>;
  return (
    <>
      {dropped > 0 && <Notice tone="warning">{pluralize(dropped, "line")} not kept: the machines printed faster than lines are sent, or they are older than the newest 20 000.</Notice>}
      <pre
        ref={box}
        className={css.log}
        tabIndex={0}
        role="log"
        aria-label="Log lines"
        onScroll={(event) => {
          const { scrollHeight, scrollTop, clientHeight } = event.currentTarget;
          setAtEnd(scrollHeight - scrollTop - clientHeight < 30);
        }}
      >
        {lines.map((line) => (
          <div key={line.number} data-line={line.number}>
            <span>
              {formatMoment(line.at, isUtc, now)} {line.machine.slice(-8)}{" "}
            </span>
            {line.text}
          </div>
        ))}
      </pre>
      {!isAtEnd && (
        <div>
          <button type="button" className={parts.button} onClick={scrollToEnd}>
            ↓ Newest lines
          </button>
        </div>
      )}
    </>
  );
}
