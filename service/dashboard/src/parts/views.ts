import { useSyncExternalStore } from "react";

// Lists that a person comes back to: a name and the query of the address, kept in this browser.

export interface SavedView {
  name: string;
  query: string;
}

const KEY = "scavenger.views";
const watchers = new Set<() => void>();
let views: readonly SavedView[] = read();

function read(): SavedView[] {
  try {
    const kept: unknown = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(kept) ? kept.filter((each): each is SavedView => typeof each?.name === "string" && typeof each?.query === "string") : [];
  } catch {
    return [];
  }
}

function keep(next: readonly SavedView[]): void {
  views = next;
  localStorage.setItem(KEY, JSON.stringify(next));
  watchers.forEach((watcher) => watcher());
}

/** Keeps a view; one of the same name is replaced. */
export function saveView(view: SavedView): void {
  keep([...views.filter((each) => each.name !== view.name), view].toSorted((one, other) => one.name.localeCompare(other.name)));
}

export function deleteView(name: string): void {
  keep(views.filter((each) => each.name !== name));
}

export function useViews(): readonly SavedView[] {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => views,
  );
}

// What another tab saved is there at once.
window.addEventListener("storage", (event) => {
  if (event.key !== KEY) return;
  views = read();
  watchers.forEach((watcher) => watcher());
});
