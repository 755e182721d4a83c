import { useSyncExternalStore } from "react";

// What a person sets for this browser: colours and time zone.

export type Theme = "system" | "light" | "dark";
export interface Preferences {
  theme: Theme;
  isUtc: boolean;
}

const KEY = "scavenger.preferences";
const watchers = new Set<() => void>();
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let preferences: Preferences = read();

function read(): Preferences {
  try {
    return { theme: "system", isUtc: false, ...(JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Preferences>) };
  } catch {
    return { theme: "system", isUtc: false };
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
