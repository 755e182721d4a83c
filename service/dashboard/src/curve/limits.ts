import type { Limits, Option } from "./options";

// Which options limits exclude. A limit counts as met when that is 90 % sure, as the controller
// judges it: the upper end of the 80 % band is what nine of ten outcomes stay below.

const Z_90 = 1.2815515655446004;
// A quantile and the limit it is compared with differ in their last digits.
const ROUNDING = 1e-9;

export type LimitName = keyof Limits;

export function breaks(option: Option, limits: Limits): LimitName[] {
  const broken: LimitName[] = [];
  if (limits.maxCost !== null && option.costHigh > limits.maxCost * (1 + ROUNDING)) broken.push("maxCost");
  if (limits.maxTime !== null && option.timeHigh > limits.maxTime * (1 + ROUNDING)) broken.push("maxTime");
  return broken;
}

export function excludedIds(options: readonly Option[], limits: Limits): Set<string> {
  return new Set(options.filter((option) => breaks(option, limits).length > 0).map((option) => option.id));
}

export function countExcluded(options: readonly Option[], limits: Limits, name: LimitName): number {
  return options.filter((option) => breaks(option, limits).includes(name)).length;
}

/** Returns the probability that a figure stays below a limit, from its median and its 90 % point. */
export function chanceBelow(median: number, high: number, limit: number | null): number | null {
  if (limit === null) return null;
  if (median <= 0) return 1;
  if (limit <= 0) return 0;
  const deviation = Math.log(high / median) / Z_90;
  if (!(deviation > 0)) return median <= limit ? 1 : 0;
  return normalCdf(Math.log(limit / median) / deviation);
}

/** The cumulative normal distribution, to 1e-7 (Abramowitz and Stegun 26.2.17). */
export function normalCdf(x: number): number {
  const t = 1 / (1 + 0.2316419 * Math.abs(x));
  const series = t * (0.31938153 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))));
  const tail = (Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI)) * series;
  return x >= 0 ? 1 - tail : tail;
}

export interface Relaxation {
  limits: Limits;
  option: Option;
  changed: readonly LimitName[];
}

/** Returns, where limits exclude every option, the least changes that admit one: of one limit where that is enough, else of both. */
export function nearestRelaxations(options: readonly Option[], limits: Limits): Relaxation[] {
  const found: Relaxation[] = [];
  const add = (changed: LimitName, need: (option: Option) => number) => {
    if (limits[changed] === null) return;
    const others = { ...limits, [changed]: null };
    const admitted = options.filter((option) => breaks(option, others).length === 0);
    const option = least(admitted, need);
    if (option) found.push({ limits: { ...limits, [changed]: need(option) }, option, changed: [changed] });
  };
  add("maxCost", (option) => option.costHigh);
  add("maxTime", (option) => option.timeHigh);
  const [only] = found;
  if (only && found.length === 1) {
    // One limit alone keeps all out: beside the least change, the next one that gains on the other axis.
    const [changed] = only.changed;
    const gains = (each: Option) => (changed === "maxCost" ? each.time < only.option.time : each.cost < only.option.cost);
    const need = (each: Option) => (changed === "maxCost" ? each.costHigh : each.timeHigh);
    const better = least(options.filter((each) => gains(each) && breaks(each, only.limits).every((name) => name === changed)), need);
    if (changed && better) found.push({ limits: { ...limits, [changed]: need(better) }, option: better, changed: only.changed });
  }
  if (found.length > 0 || limits.maxCost === null || limits.maxTime === null) return found;
  const { maxCost, maxTime } = limits;
  const option = least(options, (each) => Math.max(each.costHigh / maxCost, each.timeHigh / maxTime));
  return option ? [{ limits: { maxCost: option.costHigh, maxTime: option.timeHigh }, option, changed: ["maxCost", "maxTime"] }] : [];
}

export function least<T>(items: readonly T[], value: (item: T) => number): T | null {
  return items.reduce<T | null>((best, item) => (best === null || value(item) < value(best) ? item : best), null);
}
