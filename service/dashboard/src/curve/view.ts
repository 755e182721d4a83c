import type { Limits, Option } from "./options";

// What part of the plane is shown: where options can be chosen, not where limits exclude them.

export interface View {
  time: [low: number, high: number];
  cost: [low: number, high: number];
}

// An option this much further out than the front is long would squeeze the front into a corner.
const REACH = 1.2;
const MARGIN = 0.06;
// A limit this close beyond the options is worth the room to draw it as a line.
const NEAR_LIMIT = 1.3;

export function fitView(
  options: readonly Option[],
  front: readonly Option[],
  kept: readonly Option[],
  excluded: ReadonlySet<string>,
  limits: Limits,
  isWhole: boolean,
): View {
  const feasible = options.filter((option) => !excluded.has(option.id));
  const base = front.length > 0 ? [...front, ...kept] : options;
  const candidates = isWhole || feasible.length === 0 ? options : feasible;
  return {
    time: fitAxis(base, candidates, (o) => [o.timeLow, o.time, o.timeHigh], limits.maxTime, isWhole),
    cost: fitAxis(base, candidates, (o) => [o.costLow, o.cost, o.costHigh], limits.maxCost, isWhole),
  };
}

function fitAxis(
  base: readonly Option[],
  candidates: readonly Option[],
  values: (option: Option) => [low: number, middle: number, high: number],
  limit: number | null,
  isWhole: boolean,
): [number, number] {
  const ends = base.flatMap(values);
  let [low, high] = [Math.min(...ends), Math.max(...ends)];
  const reach = isWhole ? Number.POSITIVE_INFINITY : high + REACH * Math.max(high - low, 0.1 * high);
  for (const option of candidates) {
    const middle = values(option)[1];
    if (middle <= reach) high = Math.max(high, middle);
    if (middle >= 0) low = Math.min(low, middle);
  }
  if (limit !== null && limit >= low && limit <= high * NEAR_LIMIT) high = Math.max(high, limit);
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  const room = MARGIN * (high - low || Math.abs(high) || 1);
  const start = low - room;
  // An axis that nearly reaches zero may as well begin there, and lengths compare as they are.
  return [low < 0.4 * high ? 0 : Math.max(start, 0), high + room];
}

/** Tells at which side of a view a value lies: inside, or beyond one of its ends. */
export function sideOf(value: number, [low, high]: [number, number]): "below" | "inside" | "above" {
  return value < low ? "below" : value > high ? "above" : "inside";
}

export function clamp(value: number, low: number, high: number): number {
  return Math.min(Math.max(value, low), high);
}
