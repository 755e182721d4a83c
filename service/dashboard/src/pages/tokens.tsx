import { useState, type FormEvent } from "react";
import { change, explain } from "../api/client";
import { queryClient, useApi } from "../api/queries";
import { useSession } from "../api/session";
import type { Token } from "../api/types";
import { Chip, Loaded, Moment, Notice } from "../parts/basics";
import { Confirm } from "../parts/confirm";
import { Command, CopyCommands, curl } from "../parts/commands";
import parts from "../parts/parts.module.css";
import { useProject } from "../parts/project";
import { DataTable } from "../parts/table";
import css from "./pages.module.css";

const ROLES = ["viewer", "submitter", "operator", "admin"];

/** Who may do what: tokens, each with a role and a project. */
export function Tokens() {
  const { role, token: own } = useSession();
  const project = useProject();
  const query = useApi<{ tokens: Token[] }>("/v1/tokens");
  return (
    <>
      <div className={parts.row}>
        <CopyCommands commands={{ cli: "scavenger token list", api: curl("GET", "/v1/tokens") }} />
      </div>
      {role === "admin" && <NewToken />}
      <Loaded query={query}>
        {(found) => (
          <DataTable
            label="Tokens"
            rows={found.tokens.filter((token) => project === null || token.project === project)}
            rowKey={(token) => token.id}
            csv="tokens.csv"
            columns={[
              { name: "name", value: (t) => t.name, cell: (t) => t.name },
              { name: "id", value: (t) => t.id, cell: (t) => <code>{t.id}</code> },
              { name: "role", value: (t) => t.role, cell: (t) => t.role },
              { name: "project", value: (t) => t.project, cell: (t) => (t.project === "*" ? "all" : t.project) },
              { name: "used", value: (t) => t.last_used_at, cell: (t) => <Moment at={t.last_used_at} isAge /> },
              { name: "ends", value: (t) => t.expires_at, cell: (t) => (t.expires_at ? <Moment at={t.expires_at} /> : "never") },
              {
                name: "state",
                value: (t) => t.revoked_at ?? "",
                cell: (t) => (t.revoked_at ? <Chip tone="bad">✖ revoked</Chip> : t.id === own ? <Chip>yours</Chip> : role === "admin" ? <Revoke token={t} /> : <Chip tone="good">✔ valid</Chip>),
              },
            ]}
          />
        )}
      </Loaded>
    </>
  );
}

function Revoke({ token }: { token: Token }) {
  const revoke = async () => {
    await change("POST", `/v1/tokens/${token.id}/actions/revoke`);
    await queryClient.invalidateQueries({ queryKey: ["/v1/tokens"] });
  };
  return (
    <Confirm label="Revoke" title={`Revoke the token ${token.name}?`} action="Revoke" confirm={revoke} isDanger commands={{ cli: `scavenger token revoke ${token.id}`, api: curl("POST", `/v1/tokens/${token.id}/actions/revoke`) }}>
      <p>Requests with it are refused from now on, and its sessions end. Jobs that it submitted train on and cost what they cost.</p>
    </Confirm>
  );
}

function NewToken() {
  const [name, setName] = useState("");
  const [role, setRole] = useState("viewer");
  const [project, setProject] = useState("");
  const [made, setMade] = useState<Token | null>(null);
  const [refusal, setRefusal] = useState<unknown>(null);
  const send = async (event: FormEvent) => {
    event.preventDefault();
    setRefusal(null);
    try {
      setMade(await change<Token>("POST", "/v1/tokens", { body: { name, role, ...(project ? { project } : {}) } }));
      setName("");
      await queryClient.invalidateQueries({ queryKey: ["/v1/tokens"] });
    } catch (error) {
      setRefusal(error);
    }
  };
  return (
    <section className={parts.card} aria-label="New token">
      <h2>New token</h2>
      <form className={css.filters} onSubmit={(event) => void send(event)}>
        <label className={parts.field}>
          <span>Name</span>
          <input className={parts.input} value={name} required placeholder="who or what uses it" onChange={(event) => setName(event.target.value)} />
        </label>
        <label className={parts.field}>
          <span>Role</span>
          <select className={parts.input} value={role} onChange={(event) => setRole(event.target.value)}>
            {ROLES.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </label>
        <label className={parts.field}>
          <span>Project</span>
          <input className={parts.input} value={project} placeholder="default" onChange={(event) => setProject(event.target.value)} />
        </label>
        <button type="submit" className={`${parts.button} ${parts.primary}`}>
          Make a token
        </button>
      </form>
      {refusal !== null && <Notice tone="bad">{explain(refusal)}</Notice>}
      {made?.token && (
        <Notice tone="warning">
          <span>The secret of {made.name} is shown once:</span>
          <Command title="Token" text={made.token} />
        </Notice>
      )}
    </section>
  );
}
