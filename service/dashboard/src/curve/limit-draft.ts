import type { JobChange } from "../api/orders";
import type { Curve } from "../api/types";
import { writeDollars, writeSeconds } from "./duration";
import type { LimitName } from "./limits";
import { NO_LIMITS, limitsOf, type Limits } from "./options";

// Limits are of the whole job, as its document has them. A curve of what is left draws what is left
// of them, which shrinks while the job trains: so a draft holds the whole job's, and only those that
// a person has changed.

/** What a person has changed and not applied; null takes a limit away. */
export type LimitDraft = Partial<Limits>;

/** Returns what a job had taken where its curve counts what is left; zero where it counts the total. */
export function spentOf(curve: Curve): { maxCost: number; maxTime: number } {
  if (curve.basis !== "remaining" || curve.spent === null) return { maxCost: 0, maxTime: 0 };
  return { maxCost: Number(curve.spent.cost), maxTime: curve.spent.time };
}

/** Returns the limits of the whole job. */
export function wholeLimits(curve: Curve): Limits {
  const [left, spent] = [limitsOf(curve), spentOf(curve)];
  const whole = (name: LimitName) => (left[name] === null ? null : Number((left[name] + spent[name]).toFixed(9)));
  return curve.basis === "relative" ? NO_LIMITS : { maxCost: whole("maxCost"), maxTime: whole("maxTime") };
}

/** Returns where limits of the whole job lie on a curve. */
export function limitsOnCurve(whole: Limits, curve: Curve): Limits {
  const spent = spentOf(curve);
  const left = (name: LimitName) => (whole[name] === null ? null : Math.max(whole[name] - spent[name], 0));
  return { maxCost: left("maxCost"), maxTime: left("maxTime") };
}

/** Returns the limit of the whole job that a place on a curve stands for. */
export function limitFromCurve(name: LimitName, value: number | null, curve: Curve): number | null {
  return value === null ? null : value + spentOf(curve)[name];
}

/** Writes the limits that a draft changes; one that is left out stays as it is. */
export function changeOf(before: Limits, draft: LimitDraft): NonNullable<JobChange["limits"]> {
  const write = (text: (value: number) => string, value: number | null | undefined) => (value === null || value === undefined ? null : text(value));
  const [cost, time] = [write(writeDollars, draft.maxCost), write(writeSeconds, draft.maxTime)];
  return {
    ...(draft.maxCost === undefined || cost === write(writeDollars, before.maxCost) ? {} : { max_cost: cost }),
    ...(draft.maxTime === undefined || time === write(writeSeconds, before.maxTime) ? {} : { max_time: time }),
  };
}
