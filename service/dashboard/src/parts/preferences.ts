import { useSyncExternalStore } from "react";

// What a person sets for this browser: colours, time zone, and which project is looked at.

export type Theme = "system" | "light" | "dark";
export interface Preferences {
  theme: Theme;
  isUtc: boolean;
  /** Null is every project that the token sees. */
  project: string | null;
}

const UNSET: Preferences = { theme: "system", isUtc: false, project: null };

const KEY = "scavenger.preferences";
const watchers = new Set<() => void>();
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let preferences: Preferences = read();

function read(): Preferences {
  try {
    return { ...UNSET, ...(JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Preferences>) };
  } catch {
    return UNSET;
  }
}

function apply(): void {
  const isDark = preferences.theme === "dark" || (preferences.theme === "system" && dark.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}

export function setPreferences(change: Partial<Preferences>): void {
  preferences = { ...preferences, ...change };
  localStorage.setItem(KEY, JSON.stringify(preferences));
  apply();
  watchers.forEach((watcher) => watcher());
}

export function readPreferences(): Preferences {
  return preferences;
}

export function usePreferences(): Preferences {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => preferences,
  );
}

dark.addEventListener("change", apply);
apply();
