import type { Event } from "../api/types";

// Which events of a job its timeline draws, and how.

// What is worth a sign, most important first: where two are too close, the first of these is drawn.
const SIGNS: readonly (readonly [kinds: readonly string[], sign: string, words: string])[] = [
  [["failed", "capped", "cancelled", "succeeded"], "■", "end"],
  [["not_finite"], "⚠", "NaN"],
  [["interruption_notice", "vm_gone", "restart"], "⚡", "machine or process lost"],
  [["choice", "advice"], "★", "decision"],
  [["order", "cancel"], "☞", "order"],
  [["probe"], "◐", "probe settled"],
  [["drift", "degraded", "framework"], "≈", "model changed"],
  [["budget"], "$", "budget"],
  [["waiting", "launch_delayed", "launch_refused", "checkpoint_trouble"], "…", "waiting or trouble"],
];
const RANKS = new Map(SIGNS.flatMap(([kinds], rank) => kinds.map((kind) => [kind, rank] as const)));
const SIGN_WIDTH = 13;

/** Returns how an event is drawn; null for one that is only listed. */
export function signOf(event: Pick<Event, "kind">): { sign: string; words: string; rank: number } | null {
  const rank = RANKS.get(event.kind);
  const found = rank === undefined ? undefined : SIGNS[rank];
  return found && rank !== undefined ? { sign: found[1], words: found[2], rank } : null;
}

/** Says what the signs of some events mean. */
export function legendOf(events: readonly Event[]): string[] {
  return SIGNS.filter(([kinds]) => events.some((event) => kinds.includes(event.kind))).map(([, sign, words]) => `${sign} ${words}`);
}

/** Returns the events that are drawn: the most important ones first, and none over another. */
export function signedEvents(events: readonly Event[], x: (at: number) => number): Event[] {
  const at = (event: Event) => x(new Date(event.at).getTime());
  const rank = (event: Event) => RANKS.get(event.kind) ?? SIGNS.length;
  const kept: Event[] = [];
  for (const event of events.filter((each) => RANKS.has(each.kind)).toSorted((one, other) => rank(one) - rank(other) || other.sequence - one.sequence)) {
    if (kept.every((other) => Math.abs(at(other) - at(event)) >= SIGN_WIDTH)) kept.push(event);
  }
  return kept.toSorted((one, other) => one.sequence - other.sequence);
}
