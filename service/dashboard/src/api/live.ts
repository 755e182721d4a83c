import { useSyncExternalStore } from "react";
import { get } from "./client";
import { queryClient, refreshJob } from "./queries";
import type { Event } from "./types";

// One event stream for all tabs of a browser, since a browser opens six connections to a host: the
// tab that holds the lock reads the stream and tells the others. Where locks are missing, as on
// plain http from another computer, each tab reads its own.

export type Connection = { state: "connecting" | "live" | "polling" | "gone"; since: number };

type Message = { kind: "question" } | { kind: "connection"; state: Connection["state"] } | { kind: "job"; job: string } | { kind: "event"; event: Event };

const POLL_INTERVAL = 5_000;
const RETRY_INTERVAL = 2_000;
// A job that trains says so each second; what a page shows of it is asked for no more often.
const REFRESH_INTERVAL = 1_000;

let connection: Connection = { state: "connecting", since: Date.now() };
const watchers = new Set<() => void>();
const listeners = new Set<(event: Event) => void>();
const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("scavenger");
let lastEvent = 0;
// Whether some tab of this browser reads the stream: a single request may fail beside it.
let isStreaming = false;
let isReader = false;

export function useConnection(): Connection {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => connection,
  );
}

/** Calls a function with each event of the project until the returned function is called. */
export function listen(listener: (event: Event) => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function setConnection(state: Connection["state"]): void {
  if (state === connection.state) return;
  const wasGone = connection.state === "gone";
  connection = { state, since: Date.now() };
  watchers.forEach((watcher) => watcher());
  if (wasGone) void refreshJob(null);
}

/** Notes whether a request reached the controller. */
export function noteReached(isReached: boolean): void {
  if (!isReached) setConnection("gone");
  else if (connection.state === "gone") setConnection(isStreaming ? "live" : "polling");
}

/** Reads the stream until the returned function is called. */
export function startLive(): () => void {
  const ending = new AbortController();
  channel?.addEventListener("message", onMessage, { signal: ending.signal });
  channel?.postMessage({ kind: "question" } satisfies Message);
  const lead = () => readStream(ending.signal);
  if (channel && navigator.locks) {
    navigator.locks.request("scavenger-stream", { signal: ending.signal }, lead).catch(() => undefined);
  } else void lead();
  const poll = setInterval(() => {
    if (connection.state !== "live") void askAgain();
  }, POLL_INTERVAL);
  return () => {
    clearInterval(poll);
    ending.abort();
  };
}

async function askAgain(): Promise<void> {
  try {
    await get("/v1/session");
    await queryClient.invalidateQueries();
  } catch {
    // `noteReached` has been told.
  }
}

function onMessage({ data }: MessageEvent<Message>): void {
  if (data.kind !== "question") take(data);
  // A tab that was just opened does not know yet what the reading tab knows.
  else if (isReader && isStreaming) channel?.postMessage({ kind: "connection", state: "live" } satisfies Message);
}

function tell(message: Message): void {
  take(message);
  channel?.postMessage(message);
}

function take(message: Message): void {
  switch (message.kind) {
    case "question":
      return;
    case "connection":
      isStreaming = message.state === "live";
      setConnection(message.state);
      return;
    case "job":
      scheduleRefresh(message.job);
      return;
    case "event":
      lastEvent = Math.max(lastEvent, message.event.sequence);
      listeners.forEach((listener) => listener(message.event));
      void queryClient.invalidateQueries({ queryKey: ["/v1/events"] });
      scheduleRefresh(message.event.job ?? null, true);
  }
}

const due = new Map<string | null, number>();

function scheduleRefresh(job: string | null, isUrgent = false): void {
  const wait = isUrgent ? 50 : REFRESH_INTERVAL;
  if (due.has(job) && !isUrgent) return;
  clearTimeout(due.get(job));
  due.set(
    job,
    window.setTimeout(() => {
      due.delete(job);
      void refreshJob(job);
    }, wait),
  );
}

function readStream(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    isReader = true;
    let source: EventSource | null = null;
    let retry = 0;
    const open = () => {
      source = new EventSource(lastEvent ? `/v1/events?after=${lastEvent}` : "/v1/events");
      source.onopen = () => tell({ kind: "connection", state: "live" });
      source.addEventListener("event", (frame) => {
        tell({ kind: "event", event: JSON.parse(frame.data as string) as Event });
      });
      source.addEventListener("job", (frame) => {
        tell({ kind: "job", job: (JSON.parse(frame.data as string) as { job: string }).job });
      });
      source.onerror = () => {
        if (isStreaming) tell({ kind: "connection", state: "connecting" });
        void askAgain();
        // Closed for good: the answer was no stream. The browser itself retries a lost connection.
        if (source?.readyState === EventSource.CLOSED) retry = window.setTimeout(open, RETRY_INTERVAL);
      };
    };
    signal.addEventListener("abort", () => {
      clearTimeout(retry);
      source?.close();
      isReader = false;
      resolve();
    });
    open();
  });
}
