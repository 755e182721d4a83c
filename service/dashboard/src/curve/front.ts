import type { Option } from "./options";

// The front: options of which no other is both cheaper and faster, from fast to slow.

export function findFront(options: readonly Option[]): Option[] {
  const sorted = options.toSorted((one, other) => one.time - other.time || one.cost - other.cost || one.workers - other.workers);
  const front: Option[] = [];
  let cheapest = Number.POSITIVE_INFINITY;
  for (const option of sorted) {
    if (option.cost < cheapest) {
      front.push(option);
      cheapest = option.cost;
    }
  }
  return front;
}

/** Returns the dollars per hour that each option of a front saves against the next cheaper one. */
export function pricePerHourSaved(front: readonly Option[], index: number): number | null {
  const [own, next] = [front[index], front[index + 1]];
  if (!own || !next || next.time <= own.time) return null;
  return (own.cost - next.cost) / ((next.time - own.time) / 3600);
}

/** Returns the fastest option for which no saved hour costs more than a price. */
export function pickByPrice(front: readonly Option[], price: number): Option | null {
  let picked = front[front.length - 1] ?? null;
  for (let index = front.length - 2; index >= 0; index--) {
    const asked = pricePerHourSaved(front, index);
    if (asked === null || asked > price) break;
    picked = front[index] ?? picked;
  }
  return picked;
}

export type Scale = (value: number) => number;

/** Draws the front as steps: between two options only the faster one's cost is promised. */
export function stepPath(front: readonly Option[], x: Scale, y: Scale): string {
  return front
    .map((option, index) => (index === 0 ? `M${x(option.time)},${y(option.cost)}` : `H${x(option.time)}V${y(option.cost)}`))
    .join("");
}

/** Returns places along the steps of the front, this many pixels apart. */
export function alongSteps(front: readonly Option[], x: Scale, y: Scale, apart: number): { x: number; y: number }[] {
  return front.flatMap((option, index) => {
    const next = front[index + 1];
    if (!next) return [];
    const [left, right, top, bottom] = [x(option.time), x(next.time), y(option.cost), y(next.cost)];
    const across = Array.from({ length: Math.floor((right - left) / apart) }, (_, step) => ({ x: left + (step + 1) * apart, y: top }));
    return [...across, ...Array.from({ length: Math.floor((bottom - top) / apart) }, (_, step) => ({ x: right, y: top + (step + 1) * apart }))];
  });
}

/** Draws the 80 % band of the costs along the front, in the same steps. */
export function bandPath(front: readonly Option[], x: Scale, y: Scale): string {
  const first = front[0];
  if (!first || front.length < 2) return "";
  const upper = [`M${x(first.time)},${y(first.costHigh)}`];
  const lower: string[] = [];
  for (const [index, option] of front.entries()) {
    const next = front[index + 1];
    if (!next) break;
    upper.push(`V${y(option.costHigh)}H${x(next.time)}`);
    lower.unshift(`V${y(option.costLow)}H${x(option.time)}`);
  }
  return `${upper.join("")}${lower.join("")}Z`;
}

export interface BatchCurve {
  batch: number;
  options: Option[];
}

/** Groups options into one curve for each global batch, by rising number of workers. */
export function batchCurves(options: readonly Option[]): BatchCurve[] {
  const groups = Map.groupBy(options, (option) => option.batch);
  return [...groups]
    .map(([batch, group]) => ({ batch, options: group.toSorted((one, other) => one.workers - other.workers) }))
    .filter((curve) => curve.options.length > 1)
    .toSorted((one, other) => one.batch - other.batch);
}

export function linePath(options: readonly Option[], x: Scale, y: Scale): string {
  return options.map((option, index) => `${index ? "L" : "M"}${x(option.time)},${y(option.cost)}`).join("");
}
