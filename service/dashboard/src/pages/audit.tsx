import { usePages } from "../api/pages";
import type { AuditEntry } from "../api/types";
import { ListState, Moment } from "../parts/basics";
import { CopyCommands, curl } from "../parts/commands";
import parts from "../parts/parts.module.css";
import { DataTable } from "../parts/table";

/** Every request that asked for a change. */
export function Audit() {
  const list = usePages<{ entries: AuditEntry[]; next_cursor: string | null }>("/v1/audit", new URLSearchParams({ limit: "100" }));
  const entries = list.data?.pages.flatMap((page) => page.entries) ?? [];
  return (
    <>
      <div className={parts.row}>
        <CopyCommands commands={{ api: curl("GET", "/v1/audit") }} />
      </div>
      <ListState list={list} />
      {list.data && (
        <DataTable
          label="Audit"
          rows={entries}
          rowKey={(entry) => String(entry.number)}
          csv="audit.csv"
          columns={[
            { name: "at", value: (e) => e.at, cell: (e) => <Moment at={e.at} /> },
            { name: "token", value: (e) => e.who, cell: (e) => <code>{e.who}</code> },
            { name: "request", value: (e) => `${e.method} ${e.route}`, cell: (e) => <code>{`${e.method} ${e.route}`}</code> },
            { name: "target", value: (e) => e.target, cell: (e) => e.target ?? "" },
            { name: "status", value: (e) => e.status, cell: (e) => e.status, isNumber: true },
            { name: "request id", value: (e) => e.request_id, cell: (e) => <code>{e.request_id.slice(0, 12)}</code> },
          ]}
          more={
            list.hasNextPage && (
              <button type="button" className={parts.button} onClick={() => void list.fetchNextPage()}>
                Older requests
              </button>
            )
          }
        />
      )}
    </>
  );
}
