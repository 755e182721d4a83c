import type { Config, Curve, JobSpec, MemoryLimit, Point } from "../api/types";
import { EAGER, formatConfig, toNumber } from "../parts/format";

// The options of a curve as numbers, and what each of them is.

export interface Option {
  id: string;
  name: string;
  workers: number;
  batch: number;
  time: number;
  timeLow: number;
  timeHigh: number;
  cost: number;
  costLow: number;
  costHigh: number;
  source: Point["source"];
  point: Point;
}

export type Shape = "measured" | "predicted" | "extrapolated" | "infeasible";

export interface Limits {
  maxCost: number | null;
  maxTime: number | null;
}

export const NO_LIMITS: Limits = { maxCost: null, maxTime: null };

export function toOption(point: Point): Option {
  return {
    id: point.id,
    name: formatConfig(point),
    workers: point.workers,
    batch: point.global_batch,
    time: point.time,
    timeLow: point.time_low,
    timeHigh: point.time_high,
    cost: toNumber(point.cost) ?? Number.NaN,
    costLow: toNumber(point.cost_low) ?? Number.NaN,
    costHigh: toNumber(point.cost_high) ?? Number.NaN,
    source: point.source,
    point,
  };
}

/** Returns the options with a finite time and cost: an option without them has no place. */
export function optionsOf(curve: Curve): Option[] {
  return curve.points.map(toOption).filter((option) => Number.isFinite(option.time) && Number.isFinite(option.cost));
}

export function limitsOf(curve: Curve): Limits {
  if (curve.basis === "relative" || !curve.limits) return NO_LIMITS;
  return { maxCost: toNumber(curve.limits.max_cost), maxTime: curve.limits.max_time };
}

/** A stack within a name: without the cuts of a layout, of which no curve has two that differ. */
const shortStack = (stack: string) => stack.replace(/ C=.*$/, "").replaceAll("+", ".").replaceAll(" ", "_");

export function configId(config: Config | null | undefined): string | null {
  if (!config) return null;
  const stack = config.stack && config.stack !== EAGER ? `-${shortStack(config.stack)}` : "";
  return `k${config.workers}-b${config.global_batch}${stack}`;
}

export function shapeOf(option: Option, isExcluded: boolean): Shape {
  return isExcluded ? "infeasible" : option.source;
}

/** Returns by what the learning rate that a script was written with is multiplied at a batch, once warm; null where no rule scales it. */
export function learningRateFactor({ lr_scaling, target }: JobSpec, curve: Pick<Curve, "points" | "laws">, batch: number): number | null {
  const rule = typeof lr_scaling === "object" ? lr_scaling.rule : lr_scaling;
  // Without a batch that it names, a target counts at the smallest.
  const reference = target?.at_batch ?? Math.min(...curve.points.map((point) => point.global_batch));
  const noiseScale = curve.laws?.noise_scale ?? null;
  switch (rule) {
    case "linear":
      return batch / reference;
    case "sqrt":
      return Math.sqrt(batch / reference);
    case "adascale":
      return noiseScale === null ? 1 : (1 + noiseScale / reference) / (1 + noiseScale / batch);
    default:
      return null;
  }
}

/** Returns the GiB that the largest part of a batch leaves free on a machine. */
export function memoryLeft(memory: MemoryLimit, workers: number, batch: number): number {
  return memory.machine_gib - memory.fixed_gib - memory.gib_per_sample * Math.ceil(batch / workers);
}
