import { Link } from "wouter";
import { useConnection } from "./api/live";
import { useApi } from "./api/queries";
import type { Diagnostics, Machine, Session } from "./api/types";
import { useLater, useNow } from "./parts/clock";
import { formatAge, formatSeconds, pluralize } from "./parts/format";
import css from "./app.module.css";

const CHECK_INTERVAL = 60_000;
const LEASE_INTERVAL = 15_000;
const MOST_MACHINES = 100;
const SIGNS: Record<string, string> = { ok: "✔", warning: "!" };
// The checks that say how the controller works now; the others are on their page.
const SHOWN = ["database", "cloud", "loops", "disk"];

/** The foot of every page: the controller's version, what it finds of itself, and how old its news of machines is. */
export function StatusBar({ session }: { session: Session }) {
  const isAsked = useLater();
  const mayCheck = session.project === "*" && (session.role === "operator" || session.role === "admin");
  const version = useApi<{ version: string }>(isAsked ? "/v1/version" : null);
  const checkup = useApi<Diagnostics>(isAsked && mayCheck ? "/v1/checkup" : null, CHECK_INTERVAL);
  const machines = useApi<{ machines: Machine[] }>(isAsked ? `/v1/machines?state=launched&limit=${MOST_MACHINES}` : null, LEASE_INTERVAL);
  const checks = checkup.data?.data.checks ?? [];
  const shown = checks.filter((check) => check.state !== "ok" || SHOWN.includes(check.name));
  const { state, since } = useConnection();
  const now = useNow();
  const isGone = state === "gone";
  return (
    <footer className={css.status} aria-label="Status" data-stale={isGone}>
      <span>controller {version.data?.data.version ?? "…"}</span>
      {isGone && <strong>as it was {formatAge(since, now)}:</strong>}
      {shown.map((check) => (
        <Link key={check.name} href="/settings/checks" title={check.found} data-check={check.state}>
          <span aria-hidden="true">{SIGNS[check.state] ?? "✖"}</span> {check.name}
          {check.state !== "ok" && `: ${check.found}`}
        </Link>
      ))}
      {machines.data && <span>{describeLeases(machines.data.data.machines)}</span>}
    </footer>
  );
}

function describeLeases(machines: readonly Machine[]): string {
  const ages = machines.flatMap((machine) => (machine.lease_age === null ? [] : [machine.lease_age]));
  const count = machines.length >= MOST_MACHINES ? `${MOST_MACHINES} machines or more` : pluralize(machines.length, "machine");
  return ages.length === 0 ? count : `${count}, each heard at most ${formatSeconds(Math.max(...ages))} ago`;
}
