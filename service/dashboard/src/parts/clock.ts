import { useEffect, useState, useSyncExternalStore } from "react";

// One timer for every age on a page.

let now = Date.now();
const watchers = new Set<() => void>();
let timer = 0;

function subscribe(watcher: () => void): () => void {
  watchers.add(watcher);
  if (watchers.size === 1) {
    now = Date.now();
    timer = window.setInterval(() => {
      now = Date.now();
      watchers.forEach((each) => each());
    }, 1000);
  }
  return () => {
    watchers.delete(watcher);
    if (watchers.size === 0) clearInterval(timer);
  };
}

/** Returns the time in milliseconds, anew each second. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => now);
}

const LATER = 700;

/** Becomes true once the page has had time to ask for what it shows itself. */
export function useLater(): boolean {
  const [isLater, setLater] = useState(false);
  useEffect(() => {
    const timer = window.setTimeout(() => setLater(true), LATER);
    return () => clearTimeout(timer);
  }, []);
  return isLater;
}
