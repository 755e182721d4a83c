import { Link } from "wouter";
import { useSession } from "../api/session";
import { Title, Notice } from "../parts/basics";
import parts from "../parts/parts.module.css";
import { Audit } from "./audit";
import { Checks } from "./checks";
import { Tokens } from "./tokens";
import { Webhooks } from "./webhooks";

const VIEWS = [
  ["tokens", "Tokens"],
  ["webhooks", "Webhooks"],
  ["checks", "Checks"],
  ["audit", "Audit"],
] as const;

/** What an admin sets and looks after. */
export default function SettingsPage({ view }: { view: string }) {
  const { role } = useSession();
  return (
    <>
      <Title page="Settings">Settings</Title>
      <nav className={parts.tabs} aria-label="Settings">
        {VIEWS.map(([name, title]) => (
          <Link key={name} href={`/settings/${name}`} className={parts.tab ?? ""} aria-current={name === view ? "page" : undefined}>
            {title}
          </Link>
        ))}
      </nav>
      {role === "viewer" && <Notice>Your token may look at little of this; an admin&apos;s sees all of it.</Notice>}
      {view === "webhooks" ? <Webhooks /> : view === "audit" ? <Audit /> : view === "checks" ? <Checks /> : <Tokens />}
    </>
  );
}
