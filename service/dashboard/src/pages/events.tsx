import { useEffect, useState } from "react";
import { listen } from "../api/live";
import { usePages } from "../api/pages";
import type { Event } from "../api/types";
import { ListState, Title } from "../parts/basics";
import { CopyCommands, curl } from "../parts/commands";
import parts from "../parts/parts.module.css";
import { projectQuery, useProject } from "../parts/project";
import { useFilters } from "../parts/query";
import { EventTable, KindFilter } from "./event-table";
import css from "./pages.module.css";

const KEPT = 2000;

/** What happens to all jobs, newest first, as it happens. */
export default function EventsPage() {
  const [filters, change] = useFilters();
  const kind = filters.get("kind") ?? "";
  const project = useProject();
  const query = new URLSearchParams({ limit: "200", newest: "true", ...projectQuery(project) });
  if (kind) query.set("kind", kind);
  const events = usePages<{ events: Event[]; next_cursor?: string | null }>("/v1/events", query);
  const [arrived, setArrived] = useState<Event[]>([]);
  useEffect(() => listen((event) => setArrived((before) => [...before, event].slice(-KEPT))), []);
  const listed = events.data?.pages.flatMap((page) => page.events) ?? [];
  // An event that has just arrived may be of any project: the list, which is asked for again, tells.
  const all = new Map([...listed, ...(project === null ? arrived : [])].map((event) => [event.sequence, event]));
  const shown = [...all.values()].filter((event) => !kind || event.kind === kind).toSorted((one, other) => other.sequence - one.sequence);
  return (
    <>
      <div className={css.head}>
        <Title page="Events">Events</Title>
        <div className={parts.row}>
          <KindFilter events={[...all.values()]} kind={kind} choose={(chosen) => change({ kind: chosen })} />
          <CopyCommands commands={{ api: curl("GET", `/v1/events?${query}`) }} />
        </div>
      </div>
      <ListState list={events} />
      {events.data && (
        <EventTable
          events={shown}
          withJob
          more={
            events.hasNextPage && (
              <button type="button" className={parts.button} onClick={() => void events.fetchNextPage()}>
                More events
              </button>
            )
          }
        />
      )}
    </>
  );
}
