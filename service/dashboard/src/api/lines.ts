import type { LogLine } from "./types";

// A stream of lines for the tab that shows them. A tab that is not seen reads none: a browser opens
// six connections to a host, and a token has eight streams.

const RETRY_INTERVAL = 5_000;
// Lines that come together are shown together.
const GATHER_INTERVAL = 100;

/**
 * Reads what a job prints until the returned function is called, or the job has ended.
 *
 * @param address Returns where to begin, after the last line that is known.
 * @param take Takes lines that came, and how many are not kept.
 * @param tell Hears whether lines come by themselves now.
 */
export function followLines(address: () => string, take: (lines: LogLine[], dropped: number) => void, tell: (isLive: boolean) => void): () => void {
  let source: EventSource | null = null;
  let [retry, gathering] = [0, 0];
  let arrived: LogLine[] = [];
  let dropped = 0;
  const deliver = () => {
    gathering = 0;
    take(arrived, dropped);
    arrived = [];
  };
  const close = () => {
    clearTimeout(retry);
    source?.close();
    source = null;
    tell(false);
    if (gathering) {
      clearTimeout(gathering);
      deliver();
    }
  };
  const open = () => {
    source = new EventSource(address());
    source.onopen = () => tell(true);
    source.addEventListener("line", (frame) => {
      arrived.push(JSON.parse(frame.data as string) as LogLine);
      gathering ||= window.setTimeout(deliver, GATHER_INTERVAL);
    });
    source.addEventListener("dropped", (frame) => {
      dropped = (JSON.parse(frame.data as string) as { dropped: number }).dropped;
    });
    source.addEventListener("end", close);
    source.onerror = () => {
      tell(false);
      // Closed for good: the answer was no stream. The browser itself retries a lost connection.
      if (source?.readyState === EventSource.CLOSED) retry = window.setTimeout(open, RETRY_INTERVAL);
    };
  };
  const onSight = () => {
    if (document.hidden) close();
    else if (source === null) open();
  };
  document.addEventListener("visibilitychange", onSight);
  onSight();
  return () => {
    document.removeEventListener("visibilitychange", onSight);
    close();
  };
}
