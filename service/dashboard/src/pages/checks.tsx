import { useApi } from "../api/queries";
import type { Diagnostics } from "../api/types";
import { Chip, Loaded, Moment } from "../parts/basics";
import { CopyCommands, curl } from "../parts/commands";
import parts from "../parts/parts.module.css";
import { DataTable } from "../parts/table";

/** The controller's checks of itself, with what to do about what is wrong. */
export function Checks() {
  const query = useApi<Diagnostics>("/v1/checkup");
  return (
    <Loaded query={query}>
      {(found) => (
        <>
          <div className={parts.row}>
            <p className={parts.muted}>
              Controller {found.version}, <Moment at={found.at} />
            </p>
            <CopyCommands commands={{ cli: "scavenger doctor", api: curl("GET", "/v1/checkup") }} />
          </div>
          <DataTable
            label="Checks"
            rows={found.checks}
            rowKey={(check) => check.name}
            columns={[
              { name: "check", value: (c) => c.name, cell: (c) => c.name },
              { name: "state", value: (c) => c.state, cell: (c) => <Chip tone={c.state === "ok" ? "good" : c.state === "warning" ? "warning" : "bad"}>{c.state === "ok" ? "✔" : c.state === "warning" ? "!" : "✖"} {c.state}</Chip> },
              { name: "found", value: (c) => c.found, cell: (c) => c.found, isWide: true },
              { name: "remedy", value: (c) => c.remedy, cell: (c) => c.remedy, isWide: true },
            ]}
          />
        </>
      )}
    </Loaded>
  );
}
