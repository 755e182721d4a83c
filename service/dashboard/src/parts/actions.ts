import { useEffect, useRef } from "react";

// What can be done on the page that is shown, so that the command palette offers it too.

export interface Action {
  name: string;
  run: () => void;
}

const offered = new Set<Action>();

/** Offers an action in the command palette while its part is on the page; no name offers none. */
export function useAction(name: string | null, run: () => void): void {
  const newest = useRef(run);
  useEffect(() => {
    newest.current = run;
  });
  useEffect(() => {
    if (name === null) return undefined;
    const action = { name, run: () => newest.current() };
    offered.add(action);
    return () => void offered.delete(action);
  }, [name]);
}

/** Returns what the page offers, each name once. */
export function offeredActions(): Action[] {
  return [...new Map([...offered].map((action) => [action.name, action])).values()];
}
