import { useSearch } from "wouter";
import { setPreferences, usePreferences } from "./preferences";

// The project that a person who sees several looks at. The address holds it on pages whose lists
// know projects, so that a link shows the same; this browser keeps it for the next page.

/** Returns the project that is looked at; null is all that the token sees. */
export function useProject(): string | null {
  const search = useSearch();
  const { project } = usePreferences();
  return new URLSearchParams(search).get("project") || project;
}

export function keepProject(project: string | null): void {
  setPreferences({ project });
}
