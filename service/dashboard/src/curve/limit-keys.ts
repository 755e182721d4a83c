import { clamp } from "./view";

/** Returns the value that a key moves to, null for no limit, undefined for a key that moves nothing. */
export function keyStep(key: string, value: number, [low, high]: [number, number]): number | null | undefined {
  const step = (high - low) / 100;
  const at = clamp(value, low, high);
  switch (key) {
    case "ArrowUp":
    case "ArrowRight":
      return Math.min(at + step, high);
    case "ArrowDown":
    case "ArrowLeft":
      return Math.max(at - step, low);
    case "PageUp":
      return Math.min(at + 10 * step, high);
    case "PageDown":
      return Math.max(at - 10 * step, low);
    case "Home":
      return low;
    case "End":
      return high;
    case "Delete":
      return null;
    default:
      return undefined;
  }
}

/** Rounds a dragged value to what a pixel can mean. */
export function round(value: number, span: number): number {
  const digits = Math.max(0, 3 - Math.floor(Math.log10(span || 1)));
  return Number(value.toFixed(Math.min(digits, 12)));
}
