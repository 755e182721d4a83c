import type { Limits, Option } from "./options";

// What part of the plane is shown: where options can be chosen, not where limits exclude them.

export interface View {
  time: [low: number, high: number];
  cost: [low: number, high: number];
}

// An option this much further out than the front is long would squeeze the front into a corner.
const REACH = 0.5;
const MARGIN = 0.06;
// A limit this close beyond the options is worth the room to draw it as a line.
const NEAR_LIMIT = 1.3;
const FROM_ZERO = 0.25;
const STILL_FILLED = 0.75;

/** Both axes of the plane together: equal steps are equal amounts, or equal factors. */
export type AxisKind = "linear" | "log";

export function fitView(
  options: readonly Option[],
  front: readonly Option[],
  kept: readonly Option[],
  excluded: ReadonlySet<string>,
  limits: Limits,
  isWhole: boolean,
  axes: AxisKind = "linear",
): View {
  const feasible = options.filter((option) => !excluded.has(option.id));
  const base = front.length > 0 ? [...front, ...kept] : options;
  const candidates = isWhole || feasible.length === 0 ? options : feasible;
  const [times, costs]: [Values, Values] = [(o) => [o.timeLow, o.time, o.timeHigh], (o) => [o.costLow, o.cost, o.costHigh]];
  // What is far out on one axis would stretch the other one for nothing.
  const [latest, dearest] = isWhole ? [Infinity, Infinity] : [reachOf(base, times), reachOf(base, costs)];
  const near = candidates.filter((option) => option.time <= latest && option.cost <= dearest);
  return {
    time: fitAxis([...base.flatMap(times), ...near.map((o) => o.time)], limits.maxTime, axes),
    cost: fitAxis([...base.flatMap(costs), ...near.map((o) => o.cost)], limits.maxCost, axes),
  };
}

/** Keeps the part that was shown while what is to be shown still fills it: figures that change by the second must not move the axes. */
export function keepView(before: View | null, fitted: View): View {
  const holds = (old: [number, number], [low, high]: [number, number]) => old[0] <= low && high <= old[1] && high - low >= STILL_FILLED * (old[1] - old[0]);
  return before !== null && holds(before.time, fitted.time) && holds(before.cost, fitted.cost) ? before : fitted;
}

type Values = (option: Option) => [low: number, middle: number, high: number];

function reachOf(base: readonly Option[], values: Values): number {
  const ends = base.flatMap(values);
  const high = Math.max(...ends);
  return high + REACH * Math.max(high - Math.min(...ends), 0.1 * high);
}

function fitAxis(shown: readonly number[], limit: number | null, axes: AxisKind): [number, number] {
  const drawn = axes === "log" ? shown.filter((value) => value > 0) : shown;
  let [low, high] = [Math.min(...drawn), Math.max(...drawn)];
  if (limit !== null && limit >= low && limit <= high * NEAR_LIMIT) high = Math.max(high, limit);
  if (!Number.isFinite(low) || !Number.isFinite(high)) return axes === "log" ? [1, 10] : [0, 1];
  if (axes === "log") {
    const room = (high / low) ** MARGIN || 1 + MARGIN;
    return [low / Math.max(room, 1 + MARGIN), high * Math.max(room, 1 + MARGIN)];
  }
  const room = MARGIN * (high - low || Math.abs(high) || 1);
  // An axis that nearly reaches zero may as well begin there, and lengths compare as they are.
  return [low < FROM_ZERO * high ? 0 : Math.max(low - room, 0), high + room];
}

/** Tells at which side of a view a value lies: inside, or beyond one of its ends. */
export function sideOf(value: number, [low, high]: [number, number]): "below" | "inside" | "above" {
  return value < low ? "below" : value > high ? "above" : "inside";
}

export function clamp(value: number, low: number, high: number): number {
  return Math.min(Math.max(value, low), high);
}
