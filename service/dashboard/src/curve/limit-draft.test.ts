import { describe, expect, test } from "vitest";
import type { Curve } from "../api/types";
import { changeOf, limitFromCurve, limitsOnCurve, spentOf, wholeLimits } from "./limit-draft";

function curve(cap: number | null, seconds: number | null, spent: { cost: number; time: number } | null): Curve {
  const [cost, time] = spent === null ? [0, 0] : [spent.cost, spent.time];
  const limits = { max_cost: cap === null ? null : (cap - cost).toFixed(9), max_time: seconds === null ? null : seconds - time };
  const basis = spent === null ? "total" : "remaining";
  return { basis, limits, spent: spent && { cost: spent.cost.toFixed(9), time: spent.time } } as Curve;
}

describe.each([0, 0.731234567, 12.5, 49.999999999])("a job that has spent $%d", (cost) => {
  const now = curve(50, 36_000, { cost, time: 60 * cost });
  const later = curve(50, 36_000, { cost: cost + 0.123456789, time: 60 * cost + 45.678 });

  test("has the limits of its document, whenever it is asked", () => {
    expect(wholeLimits(now)).toEqual({ maxCost: 50, maxTime: 36_000 });
    expect(wholeLimits(later)).toEqual({ maxCost: 50, maxTime: 36_000 });
  });

  test("keeps the limit that was not changed, however long a draft stays open", () => {
    const draft = { maxTime: 28_800 };
    expect(changeOf(wholeLimits(now), draft)).toEqual({ max_time: "28800s" });
    expect(changeOf(wholeLimits(later), draft)).toEqual({ max_time: "28800s" });
    expect(changeOf(wholeLimits(later), { maxCost: 50 })).toEqual({});
    expect(changeOf(wholeLimits(later), { maxCost: null })).toEqual({ max_cost: null });
  });

  test("draws a limit at what is left of it, and reads the place back", () => {
    const drawn = limitsOnCurve({ maxCost: 60, maxTime: null }, now);
    expect(drawn).toEqual({ maxCost: 60 - spentOf(now).maxCost, maxTime: null });
    expect(limitFromCurve("maxCost", drawn.maxCost, now)).toBeCloseTo(60, 9);
    expect(limitFromCurve("maxTime", drawn.maxTime, now)).toBeNull();
  });
});

test("a curve of the total is judged by the limits as they are", () => {
  const whole = curve(3.4, null, null);
  expect(wholeLimits(whole)).toEqual({ maxCost: 3.4, maxTime: null });
  expect(limitsOnCurve(wholeLimits(whole), whole)).toEqual({ maxCost: 3.4, maxTime: null });
  expect(wholeLimits({ ...whole, basis: "relative" })).toEqual({ maxCost: null, maxTime: null });
});
