import { useSearch } from "wouter";
import { useSession } from "../api/session";
import { readPreferences, setPreferences, usePreferences } from "./preferences";

// The project that a person who sees several looks at. The address holds it on pages whose lists
// know projects, so that a link shows the same; this browser keeps it for the next page.

/** Returns the project that is looked at; null is all that the token sees. */
export function useProject(): string | null {
  const search = useSearch();
  const session = useSession();
  const { project } = usePreferences();
  // Another token in this browser may have chosen one that this token does not see.
  if (session.project !== "*") return null;
  return new URLSearchParams(search).get("project") || project;
}

/** Returns the same for an address that no page has read yet. */
export function chosenProject(search: string): string | null {
  return new URLSearchParams(search).get("project") || readPreferences().project;
}

/** Writes what a list is asked for, of the project that is looked at. */
export function projectQuery(project: string | null): Record<string, string> {
  return project === null ? {} : { project };
}

/** Writes the option of a command for the project that is looked at. */
export function projectOption(project: string | null): string {
  return project === null ? "" : ` --project ${project}`;
}

export function keepProject(project: string | null): void {
  setPreferences({ project });
}
