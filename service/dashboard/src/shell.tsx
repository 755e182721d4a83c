import { Suspense, lazy, useEffect, useRef, useState, type ReactNode } from "react";
import { Link, useLocation } from "wouter";
import { useConnection, type Connection } from "./api/live";
import { signOut } from "./api/session";
import type { Session } from "./api/types";
import { Boundary } from "./boundary";
import { Notice } from "./parts/basics";
import type { Action } from "./parts/actions";
import { useNow } from "./parts/clock";
import { formatAge, formatMoment } from "./parts/format";
import { setPreferences, usePreferences, type Theme } from "./parts/preferences";
import { ProjectSwitcher } from "./projects";
import { StatusBar } from "./status";
import parts from "./parts/parts.module.css";
import css from "./app.module.css";

const Palette = lazy(() => import("./palette"));

const PAGES = [
  ["/jobs", "Jobs"],
  ["/plan", "Plan"],
  ["/compare", "Compare"],
  ["/models", "Models"],
  ["/cost", "Cost"],
  ["/fleet", "Fleet"],
  ["/events", "Events"],
  ["/settings", "Settings"],
] as const;

/** What stands around every page: where to go, who is signed in, whether data is live. */
export function Shell({ session, children }: { session: Session; children: ReactNode }) {
  const [location] = useLocation();
  const connection = useConnection();
  const isGone = connection.state === "gone";
  const nav = useRef<HTMLUListElement>(null);
  // On a narrow screen the list of pages scrolls.
  useEffect(() => {
    nav.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [location]);
  return (
    <div className={css.shell}>
      <a className={css.skip} href="#content">
        Skip to the page
      </a>
      <header className={css.header}>
        <Link href="/jobs" className={css.brand ?? ""}>
          <svg width="18" height="18" viewBox="0 0 16 16" aria-hidden="true">
            <path d="M2 2v8h4v3h8" />
          </svg>
          Scavenger
        </Link>
        <span className={parts.muted} title={`token ${session.token}`}>
          {session.name} · {session.role}
          {session.project === "*" ? "" : ` · ${session.project}`}
        </span>
        <ProjectSwitcher session={session} />
        <span className={css.fill} />
        <CommandPalette />
        <LiveState connection={connection} />
        <Settings />
        <button type="button" className={parts.button} onClick={() => void signOut()}>
          Sign out
        </button>
      </header>
      <nav className={css.nav} aria-label="Pages">
        <ul ref={nav}>
          {PAGES.map(([path, name]) => (
            <li key={path}>
              <Link href={path} aria-current={location === path || location.startsWith(`${path}/`) ? "page" : undefined}>
                {name}
              </Link>
            </li>
          ))}
        </ul>
      </nav>
      <main className={css.main} id="content" tabIndex={-1} data-stale={isGone}>
        {isGone && <Gone connection={connection} />}
        <div className={css.content}>
          {children}
        </div>
      </main>
      <StatusBar session={session} />
    </div>
  );
}

const SETTINGS: Action[] = [
  ...(["system", "light", "dark"] as const).map((theme) => ({ name: `Colours: ${theme}`, run: () => setPreferences({ theme }) })),
  { name: "Times: local", run: () => setPreferences({ isUtc: false }) },
  { name: "Times: UTC", run: () => setPreferences({ isUtc: true }) },
  { name: "Sign out", run: () => void signOut() },
];
const isApple = /Mac|iPhone|iPad/.test(navigator.userAgent);

function CommandPalette() {
  const [isOpen, setOpen] = useState(false);
  // Its code is asked for when it is opened first.
  const [isWanted, setWanted] = useState(false);
  const open = () => {
    setWanted(true);
    setOpen(true);
  };
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
      event.preventDefault();
      // A dialog that asks something is answered first.
      if (document.querySelector("[role=alertdialog]") === null) open();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
  return (
    <>
      <button type="button" className={`${parts.button} ${css.search}`} aria-haspopup="dialog" onClick={open}>
        Search <kbd>{isApple ? "⌘K" : "Ctrl K"}</kbd>
      </button>
      {isWanted && (
        <Boundary place={String(isOpen)} isQuiet>
          <Suspense fallback={null}>
            <Palette isOpen={isOpen} setOpen={setOpen} pages={PAGES} settings={SETTINGS} />
          </Suspense>
        </Boundary>
      )}
    </>
  );
}

function Gone({ connection }: { connection: Connection }) {
  const now = useNow();
  const { isUtc } = usePreferences();
  return (
    <div className={parts.stack} style={{ marginBottom: "1rem" }} data-banner="gone">
      <Notice tone="bad">
        The controller does not answer since {formatMoment(connection.since, isUtc, now)}. What you see is as it was then, {formatAge(connection.since, now)}; jobs train on
        without it. This page asks again by itself.
      </Notice>
    </div>
  );
}

const STATES: Record<Connection["state"], [sign: string, words: string]> = {
  live: ["●", "live"],
  connecting: ["◌", "connecting"],
  polling: ["◍", "asks every 5 s"],
  gone: ["✖", "controller gone"],
};

function LiveState({ connection }: { connection: Connection }) {
  const [sign, words] = STATES[connection.state];
  return (
    <span className={css.live} role="status" data-live={connection.state}>
      <span aria-hidden="true">{sign}</span>
      {words}
    </span>
  );
}

function Settings() {
  const { theme, isUtc } = usePreferences();
  return (
    <>
      <select className={css.select} aria-label="Colours" value={theme} onChange={(event) => setPreferences({ theme: event.target.value as Theme })}>
        <option value="system">system</option>
        <option value="light">light</option>
        <option value="dark">dark</option>
      </select>
      <select className={css.select} aria-label="Time zone" value={isUtc ? "utc" : "local"} onChange={(event) => setPreferences({ isUtc: event.target.value === "utc" })}>
        <option value="local">local time</option>
        <option value="utc">UTC</option>
      </select>
    </>
  );
}
