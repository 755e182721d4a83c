// Ticks at times that people say: 30 seconds, 5 minutes, 2 hours.

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86_400;
const STEPS = [
  1, 2, 5, 10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 20 * MINUTE, 30 * MINUTE, HOUR,
  2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 5 * DAY, 10 * DAY, 20 * DAY, 50 * DAY, 100 * DAY,
];

export function timeTicks([low, high]: [number, number], count: number): number[] {
  const wanted = (high - low) / Math.max(count, 1);
  const step = wanted < 1 ? niceStep(wanted) : (STEPS.find((each) => each >= wanted) ?? niceStep(wanted));
  return multiples(low, high, step);
}

export function valueTicks([low, high]: [number, number], count: number): number[] {
  return multiples(low, high, niceStep((high - low) / Math.max(count, 1)));
}

/** Returns ticks at 1, 2 and 5 times powers of ten, or at times that people say; fewer where these would crowd. */
export function logTicks([low, high]: [number, number], count: number, isTime: boolean): number[] {
  const all = isTime ? STEPS.filter((step) => step >= 1) : decades(low, high, [1, 2, 5]);
  const inside = all.filter((value) => value >= low && value <= high);
  if (inside.length < 3) return isTime ? timeTicks([low, high], count) : valueTicks([low, high], count);
  const gap = Math.log(high / low) / Math.max(count, 1);
  const kept: number[] = [];
  for (const value of inside) if (kept.length === 0 || Math.log(value / (kept[kept.length - 1] ?? 1)) >= 0.8 * gap) kept.push(value);
  return kept;
}

function decades(low: number, high: number, factors: readonly number[]): number[] {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  if (!(last - first < 100)) return [];
  return Array.from({ length: last - first + 1 }, (_, index) => factors.map((factor) => Number((factor * 10 ** (first + index)).toPrecision(12)))).flat();
}

/** Rounds a step up to 1, 2 or 5 times a power of ten. */
export function niceStep(step: number): number {
  if (!(step > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(step));
  const factor = [1, 2, 5, 10].find((each) => each * power >= step * (1 - 1e-9)) ?? 10;
  return factor * power;
}

function multiples(low: number, high: number, step: number): number[] {
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  if (!(last - first < 1000)) return [];
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/** Writes a tick of a time axis, with the unit that the axis' span asks for. */
export function formatTick(seconds: number, [low, high]: [number, number]): string {
  const span = high - low;
  if (seconds === 0) return "0";
  if (high < 2 * MINUTE) return `${trim(seconds)}s`;
  if (high < 2 * HOUR) {
    const rest = Math.round(seconds % MINUTE);
    const minutes = Math.floor(seconds / MINUTE + 1e-9);
    if (rest === 0) return `${minutes}m`;
    return minutes ? `${minutes}m${String(rest).padStart(2, "0")}s` : `${rest}s`;
  }
  if (high < 3 * DAY || span < DAY) {
    const hours = Math.floor(seconds / HOUR + 1e-9);
    const rest = Math.round((seconds % HOUR) / MINUTE);
    return rest ? `${hours}h${String(rest).padStart(2, "0")}` : `${hours}h`;
  }
  return `${trim(seconds / DAY)}d`;
}

function trim(value: number): string {
  return String(Number(value.toPrecision(6)));
}
