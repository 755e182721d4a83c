import { useEffect } from "react";
import { useLocation, useSearch } from "wouter";
import { useApi } from "./api/queries";
import type { CostReport, Session, Token } from "./api/types";
import { useLater } from "./parts/clock";
import { usePreferences } from "./parts/preferences";
import { keepProject, useProject } from "./parts/project";
import css from "./app.module.css";

// Pages that show one project: their addresses hold it.
const FILTERED = ["/jobs", "/models", "/cost", "/fleet", "/events", "/settings", "/settings/tokens", "/settings/webhooks"];
const seesAll = (session: Session) => session.project === "*";

/** Chooses one of the projects that a token sees. */
export function ProjectSwitcher({ session }: { session: Session }) {
  const [location, navigate] = useLocation();
  const search = useSearch();
  const project = useProject();
  const { project: kept } = usePreferences();
  const names = useProjectNames(session, project);
  const write = (next: string | null) => {
    const query = new URLSearchParams(search);
    if (next) query.set("project", next);
    else query.delete("project");
    const text = query.toString();
    navigate(text ? `${location}?${text}` : location, { replace: true });
  };
  const isFiltered = FILTERED.includes(location);
  useEffect(() => {
    if (!seesAll(session) || !isFiltered || project === null) return;
    if (project !== kept) keepProject(project);
    if (new URLSearchParams(search).get("project") !== project) write(project);
  }, [session, isFiltered, project, kept, search]); // eslint-disable-line
  if (!seesAll(session) || names.length < 2) return null;
  const choose = (next: string | null) => {
    keepProject(next);
    if (isFiltered) write(next);
  };
  return (
    <select className={css.select} aria-label="Project" value={project ?? ""} onChange={(event) => choose(event.target.value || null)}>
      <option value="">all projects</option>
      {names.map((name) => (
        <option key={name}>{name}</option>
      ))}
    </select>
  );
}

/** Each project with a token; for a token that may not list these, each that has spent money. */
function useProjectNames(session: Session, chosen: string | null): string[] {
  const isAsked = useLater() && seesAll(session);
  const tokens = useApi<{ tokens: Token[] }>(isAsked && session.role === "admin" ? "/v1/tokens" : null);
  const costs = useApi<CostReport>(isAsked && session.role !== "admin" ? "/v1/cost?by=project&limit=200" : null);
  const named = [...(tokens.data?.data.tokens ?? []).map((token) => token.project), ...(costs.data?.data.entries ?? []).map((entry) => entry.key), "default", chosen ?? ""];
  return [...new Set(named)].filter((name) => name !== "" && name !== "*").toSorted();
}
