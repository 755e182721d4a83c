import { describe, expect, test } from "vitest";
import { batchCurves, bandPath, findFront, pickByPrice, pricePerHourSaved, stepPath } from "./front";
import { overlaps, placeLabels, spreadLabels } from "./labels";
import { keyStep } from "./limit-keys";
import { breaks, chanceBelow, countExcluded, excludedIds, nearestRelaxations, normalCdf } from "./limits";
import { learningRateFactor, memoryLeft, type Option } from "./options";
import { regretOf } from "./regret";
import { formatTick, logTicks, niceStep, timeTicks, valueTicks } from "./ticks";
import { fitView, keepView, sideOf } from "./view";

// A stream of numbers that is the same in each run: a failure can be played again.
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

function option(workers: number, batch: number, time: number, cost: number, spread = 1.1): Option {
  const id = `k${workers}-b${batch}`;
  return {
    ...{ id, name: id, workers, batch, time, cost, source: "predicted" as const },
    ...{ timeLow: time / spread, timeHigh: time * spread, costLow: cost / spread, costHigh: cost * spread },
    point: undefined as never,
  };
}

function cloud(seed: number, count: number): Option[] {
  const draw = random(seed);
  return Array.from({ length: count }, (_, index) => option(1 + (index % 24), 64 * (1 + Math.floor(index / 24)), 60 + 7200 * draw(), 0.1 + 5 * draw(), 1 + draw()));
}

const SEEDS = Array.from({ length: 40 }, (_, seed) => seed);

describe.each(SEEDS)("a cloud of options, seed %i", (seed) => {
  const options = cloud(seed, 5 + seed * 3);
  const front = findFront(options);

  test("its front is exactly what no other option beats", () => {
    const isBeaten = (one: Option) => options.some((other) => other.time <= one.time && other.cost <= one.cost && (other.time < one.time || other.cost < one.cost));
    expect(new Set(front.map((each) => each.id))).toEqual(new Set(options.filter((each) => !isBeaten(each)).map((each) => each.id)));
    expect(front.map((each) => each.time)).toEqual(front.map((each) => each.time).toSorted((a, b) => a - b));
  });

  test("its front is the same in any order, and with an option that is beaten", () => {
    const worse = option(99, 99, 20_000, 50);
    expect(findFront([worse, ...options.toReversed()])).toEqual(front);
  });

  test("a limit excludes an option when nine of ten outcomes do not meet it", () => {
    const limits = { maxCost: 2.5, maxTime: 3600 };
    for (const each of options) {
      const isSure = (chanceBelow(each.cost, each.costHigh, 2.5) ?? 1) >= 0.9 - 1e-6 && (chanceBelow(each.time, each.timeHigh, 3600) ?? 1) >= 0.9 - 1e-6;
      expect(breaks(each, limits).length === 0).toBe(isSure);
    }
    const excluded = excludedIds(options, limits).size;
    expect(excluded).toBeLessThanOrEqual(countExcluded(options, limits, "maxCost") + countExcluded(options, limits, "maxTime"));
  });

  test("each relaxation admits the option that it names", () => {
    const limits = { maxCost: 0.01, maxTime: 7200 };
    for (const each of nearestRelaxations(options, limits)) expect(breaks(each.option, each.limits)).toEqual([]);
  });

  test("a view shows the whole front", () => {
    const view = fitView(options, front, [], new Set(), { maxCost: null, maxTime: null }, false);
    for (const each of front) {
      expect([sideOf(each.time, view.time), sideOf(each.cost, view.cost)]).toEqual(["inside", "inside"]);
      expect([sideOf(each.timeHigh, view.time), sideOf(each.costHigh, view.cost)]).toEqual(["inside", "inside"]);
    }
  });

  test("a view on axes of factors shows the whole front, and has no zero", () => {
    const view = fitView(options, front, [], new Set(), { maxCost: null, maxTime: null }, false, "log");
    for (const each of front) expect([sideOf(each.time, view.time), sideOf(each.costHigh, view.cost)]).toEqual(["inside", "inside"]);
    expect(view.time[0] > 0 && view.cost[0] > 0).toBe(true);
  });

  test("a view stays while what it shows still fills it", () => {
    const draw = random(seed);
    const fitted = fitView(options, front, [], new Set(), { maxCost: null, maxTime: null }, false);
    const within = ([low, high]: [number, number], share: number): [number, number] => [low + (high - low) * (1 - share) * draw(), high - (high - low) * 1e-9];
    const smaller = { time: within(fitted.time, 0.8), cost: within(fitted.cost, 0.8) };
    expect(keepView(fitted, smaller)).toBe(fitted);
    expect(keepView(smaller, fitted)).toBe(fitted);
    expect(keepView(null, fitted)).toBe(fitted);
  });

  test("the regret of an option is against the best that is as fast, and never negative", () => {
    for (const own of options) {
      const regret = regretOf(own, options);
      const asFast = options.filter((each) => each !== own && each.time <= own.time);
      if (regret === null) expect(asFast).toEqual([]);
      else expect(regret.amount).toBe(Math.max(0, ...asFast.map((each) => own.costHigh - each.costLow)));
    }
  });

  test("the learning rate follows the batch as the agent makes it follow", () => {
    const noiseScale = 1 + 4000 * random(seed)();
    const factor = (rule: string, batch: number, laws: unknown = { noise_scale: noiseScale }) =>
      learningRateFactor({ lr_scaling: rule, target: { at_batch: 64 } }, { points: [], laws: laws as never }, batch) ?? Number.NaN;
    for (const { batch } of options) {
      expect(factor("linear", batch)).toBeCloseTo(batch / 64, 12);
      expect(factor("sqrt", batch) ** 2).toBeCloseTo(factor("linear", batch), 9);
      expect(factor("adascale", batch)).toBeGreaterThanOrEqual(1);
      expect(factor("adascale", batch)).toBeLessThanOrEqual(factor("linear", batch));
      expect([factor("adascale", batch, null), factor("none", batch)]).toEqual([1, Number.NaN]);
    }
  });

  test("memory is left for no more samples than a worker holds", () => {
    const memory = { machine_gib: 16, fixed_gib: 2, gib_per_sample: 0.25 };
    for (const { workers, batch } of options) expect(memoryLeft(memory, workers, batch) >= 0).toBe(Math.ceil(batch / workers) <= 56);
  });

  test.each([
    [700, 400, 4],
    [428, 224, 3],
  ])("labels stay inside a plot of %i times %i and apart from each other", (width, height, count) => {
    const draw = random(seed + 1);
    const area = { left: 60, top: 10, width, height };
    const wanted = Array.from({ length: count }, (_, index) => ({ id: String(index), x: area.left + width * draw(), y: area.top + height * draw(), lines: ["fastest  K=24 B=1024", "43m00s · $2.30"] }));
    const placed = placeLabels(wanted, wanted.map((each) => ({ ...each, weight: 12 })), [], area);
    for (const [index, { box }] of placed.entries()) {
      expect(box.left >= area.left && box.left + box.width <= area.left + area.width).toBe(true);
      expect(box.top >= area.top && box.top + box.height <= area.top + area.height).toBe(true);
      for (const other of placed.slice(index + 1)) expect(overlaps(box, other.box)).toBe(false);
    }
  });

  test("labels of batches keep their order and their distance", () => {
    const draw = random(seed);
    const labels = Array.from({ length: 12 }, (_, index) => ({ index, y: 300 * draw() }));
    const ys = spreadLabels(labels, 10, 300, 13).map((label) => label.y);
    for (const [index, y] of ys.entries()) {
      expect(y).toBeGreaterThanOrEqual(10 - 1e-9);
      expect(y).toBeLessThanOrEqual(300 + 1e-9);
      if (index) expect(y - (ys[index - 1] ?? 0)).toBeGreaterThanOrEqual(13 - 1e-9);
    }
  });

  test("ticks are few, rise, and lie inside", () => {
    const draw = random(seed + 7);
    const low = 10 ** (6 * draw() - 2);
    const domain: [number, number] = [low, low * (1.5 + 20 * draw())];
    for (const ticks of [timeTicks(domain, 6), valueTicks(domain, 6), logTicks(domain, 6, true), logTicks(domain, 6, false)]) {
      expect(ticks.length).toBeLessThanOrEqual(9);
      expect(ticks.length).toBeGreaterThan(0);
      for (const [index, tick] of ticks.entries()) {
        expect(tick).toBeGreaterThanOrEqual(domain[0] * (1 - 1e-9));
        expect(tick).toBeLessThanOrEqual(domain[1] * (1 + 1e-9));
        if (index) expect(tick).toBeGreaterThan(ticks[index - 1] ?? 0);
      }
    }
  });

  test("a higher price of an hour never picks a slower option", () => {
    let before = Number.POSITIVE_INFINITY;
    for (const price of [0, 0.5, 1, 2, 5, 10, 100, 1e6]) {
      const picked = pickByPrice(front, price)?.time ?? 0;
      expect(picked).toBeLessThanOrEqual(before);
      before = picked;
    }
  });
});

const THREE = [option(24, 1024, 1800, 3), option(12, 1024, 3600, 2), option(4, 1024, 7200, 1.5)];
const same = (value: number) => value;

test("the front is drawn in steps: the faster option's cost holds until the next one's time", () => {
  expect(stepPath(THREE, same, same)).toBe("M1800,3H3600V2H7200V1.5");
});

test("the band follows the steps of the front, and one option has none", () => {
  expect(bandPath(THREE, same, Math.round)).toBe("M1800,3V3H3600V2H7200V2H3600V3H1800Z");
  expect(bandPath(THREE.slice(0, 1), same, same)).toBe("");
});

test("an hour that is saved has the price of the step beside it", () => {
  expect([0, 1, 2].map((place) => pricePerHourSaved(THREE, place))).toEqual([2, 0.5, null]);
});

test("options of one batch are one curve, by workers", () => {
  const curves = batchCurves([option(4, 64, 1, 1), option(1, 64, 2, 1), option(2, 128, 1, 1), option(2, 64, 1, 1)]);
  expect(curves.map((curve) => [curve.batch, curve.options.map((each) => each.workers)])).toEqual([[64, [1, 2, 4]]]);
});

test.each([
  ["ArrowUp", 50.99], ["ArrowDown", 49.01], ["PageUp", 59.9], ["PageDown", 40.1], ["Home", 1], ["End", 100], ["Delete", null], ["x", undefined],
] as const)("the key %s moves a limit of 50 between 1 and 100 to %s", (key, wanted) => {
  const moved = keyStep(key, 50, [1, 100]);
  if (typeof wanted === "number") expect(moved).toBeCloseTo(wanted, 6);
  else expect(moved).toBe(wanted);
});

test("ticks of time are times that people say", () => {
  expect(timeTicks([0, 7000], 6).map((tick) => formatTick(tick, [0, 7000]))).toEqual(["0", "20m", "40m", "60m", "80m", "100m"]);
  expect(timeTicks([3600, 40_000], 5).map((tick) => formatTick(tick, [3600, 40_000]))).toEqual(["3h", "6h", "9h"]);
  expect([0.3, 3, 7, 11].map(niceStep)).toEqual([0.5, 5, 10, 20]);
});

test("the normal distribution is that of the tables", () => {
  expect([-1.2815515655, 0, 1.6448536].map((x) => Number(normalCdf(x).toFixed(6)))).toEqual([0.1, 0.5, 0.95]);
});
