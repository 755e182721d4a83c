import { useState, type FormEvent } from "react";
import { change, explain } from "../api/client";
import { queryClient, useApi } from "../api/queries";
import { useSession } from "../api/session";
import type { Delivery, Webhook } from "../api/types";
import { Chip, Loaded, Moment, Notice } from "../parts/basics";
import { Confirm } from "../parts/confirm";
import { Command, CopyCommands, curl } from "../parts/commands";
import parts from "../parts/parts.module.css";
import { useProject } from "../parts/project";
import { DataTable } from "../parts/table";
import css from "./pages.module.css";

const refresh = () => queryClient.invalidateQueries({ predicate: ({ queryKey }) => String(queryKey[0]).startsWith("/v1/webhooks") });

/** Addresses that are told what happens, and what became of each message. */
export function Webhooks() {
  const { role } = useSession();
  const project = useProject();
  const query = useApi<{ webhooks: Webhook[] }>("/v1/webhooks?limit=200");
  const [shown, setShown] = useState<string | null>(null);
  const canChange = role === "operator" || role === "admin";
  return (
    <>
      <div className={parts.row}>
        <CopyCommands commands={{ cli: "scavenger webhook list", api: curl("GET", "/v1/webhooks") }} />
      </div>
      {canChange && <NewWebhook />}
      <Loaded query={query}>
        {(found) => (
          <DataTable
            label="Webhooks"
            rows={found.webhooks.filter((hook) => project === null || hook.project === project)}
            rowKey={(hook) => hook.id}
            empty={<p className={parts.muted}>None: nothing is told to other programs.</p>}
            columns={[
              { name: "address", value: (w) => w.url, cell: (w) => w.url },
              { name: "kind", value: (w) => w.kind, cell: (w) => w.kind },
              { name: "events", value: (w) => w.events.join(" "), cell: (w) => w.events.join(", ") },
              { name: "state", value: (w) => String(w.is_enabled), cell: (w) => (w.is_enabled ? <Chip tone="good">✔ enabled</Chip> : <Chip tone="bad" title={w.disabled_why ?? ""}>✖ {w.disabled_why ?? "disabled"}</Chip>) },
              {
                name: "do",
                head: <span className="hidden-text">actions</span>,
                cell: (w) => (
                  <div className={css.inline}>
                    <button type="button" className={parts.button} aria-expanded={shown === w.id} onClick={() => setShown(shown === w.id ? null : w.id)}>
                      Deliveries
                    </button>
                    {canChange && <Actions hook={w} />}
                  </div>
                ),
              },
            ]}
          />
        )}
      </Loaded>
      {shown && <Deliveries hook={shown} canReplay={canChange} />}
    </>
  );
}

function Actions({ hook }: { hook: Webhook }) {
  const [said, setSaid] = useState("");
  const [secret, setSecret] = useState("");
  const test = async () => {
    try {
      await change("POST", `/v1/webhooks/${hook.id}/actions/test`, {});
      setSaid("A test is on its way: look at its deliveries.");
      await refresh();
    } catch (error) {
      setSaid(explain(error));
    }
  };
  return (
    <>
      <button type="button" className={parts.button} onClick={() => void test()}>
        Test
      </button>
      {hook.kind === "generic" && (
        <Confirm
          label="New secret"
          title="Replace the secret?"
          action="Replace"
          commands={{ cli: `scavenger webhook rotate ${hook.id}`, api: curl("POST", `/v1/webhooks/${hook.id}/actions/rotate`) }}
          confirm={async () => setSecret((await change<Webhook>("POST", `/v1/webhooks/${hook.id}/actions/rotate`, {})).secret ?? "")}
        >
          <p>Messages are signed with both secrets for a while, so that the receiver can change in peace.</p>
        </Confirm>
      )}
      <Confirm label="Delete" title={`Delete the webhook ${hook.url}?`} action="Delete" isDanger commands={{ cli: `scavenger webhook delete ${hook.id}`, api: curl("DELETE", `/v1/webhooks/${hook.id}`) }} confirm={() => change("DELETE", `/v1/webhooks/${hook.id}`).then(refresh)}>
        <p>Nothing more is sent there, nor what waits to be sent.</p>
      </Confirm>
      {said && <span role="status">{said}</span>}
      {secret && <Command title="New secret, shown once" text={secret} />}
    </>
  );
}

function Deliveries({ hook, canReplay }: { hook: string; canReplay: boolean }) {
  const query = useApi<{ deliveries: Delivery[] }>(`/v1/webhooks/${hook}/deliveries?limit=50`, 3000);
  return (
    <section className={parts.card} aria-label="Deliveries">
      <h2>Deliveries</h2>
      <Loaded query={query}>
        {(found) => (
          <DataTable
            label="Deliveries"
            rows={found.deliveries}
            rowKey={(delivery) => String(delivery.number)}
            columns={[
              { name: "at", value: (d) => d.created_at, cell: (d) => <Moment at={d.created_at} /> },
              { name: "event", value: (d) => d.kind ?? "test", cell: (d) => d.kind ?? "test" },
              { name: "state", value: (d) => d.state, cell: (d) => <Chip tone={d.state === "delivered" ? "good" : d.state === "failed" ? "bad" : "plain"}>{d.state}</Chip> },
              { name: "tries", value: (d) => d.attempts, cell: (d) => d.attempts, isNumber: true },
              { name: "status", value: (d) => d.status, cell: (d) => d.status ?? "", isNumber: true },
              { name: "told", value: (d) => d.told ?? "", cell: (d) => d.told ?? "", isWide: true },
              {
                name: "again",
                head: <span className="hidden-text">again</span>,
                cell: (d) =>
                  canReplay && d.state !== "waiting" ? (
                    <button type="button" className={parts.button} onClick={() => void change("POST", `/v1/webhooks/${hook}/deliveries/${d.number}/actions/replay`, {}).then(refresh)}>
                      Send again
                    </button>
                  ) : (
                    ""
                  ),
              },
            ]}
          />
        )}
      </Loaded>
    </section>
  );
}

function NewWebhook() {
  const [url, setUrl] = useState("");
  const [kind, setKind] = useState("generic");
  const [events, setEvents] = useState("");
  const [made, setMade] = useState<Webhook | null>(null);
  const [refusal, setRefusal] = useState<unknown>(null);
  const send = async (event: FormEvent) => {
    event.preventDefault();
    setRefusal(null);
    const names = events.split(/[\s,]+/).filter(Boolean);
    try {
      setMade(await change<Webhook>("POST", "/v1/webhooks", { body: { url, kind, ...(names.length ? { events: names } : {}) } }));
      setUrl("");
      await refresh();
    } catch (error) {
      setRefusal(error);
    }
  };
  return (
    <section className={parts.card} aria-label="New webhook">
      <h2>New webhook</h2>
      <form className={css.filters} onSubmit={(event) => void send(event)}>
        <label className={`${parts.field} ${css.wide}`}>
          <span>Address</span>
          <input className={parts.input} type="url" required value={url} placeholder="https://…" onChange={(event) => setUrl(event.target.value)} />
        </label>
        <label className={parts.field}>
          <span>Kind</span>
          <select className={parts.input} value={kind} onChange={(event) => setKind(event.target.value)}>
            <option>generic</option>
            <option>slack</option>
          </select>
        </label>
        <label className={parts.field}>
          <span>Events</span>
          <input className={parts.input} value={events} placeholder="what ends or goes wrong" onChange={(event) => setEvents(event.target.value)} />
        </label>
        <button type="submit" className={`${parts.button} ${parts.primary}`}>
          Add a webhook
        </button>
      </form>
      {refusal !== null && <Notice tone="bad">{explain(refusal)}</Notice>}
      {made?.secret && (
        <Notice tone="warning">
          <span>Its secret is shown once:</span>
          <Command title="Secret" text={made.secret} />
        </Notice>
      )}
    </section>
  );
}
