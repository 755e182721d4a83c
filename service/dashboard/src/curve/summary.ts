import type { Curve } from "../api/types";
import { formatConfig, formatCost, formatPercent, formatTime, pluralize } from "../parts/format";
import type { Option } from "./options";

// What the picture says, as sentences for a screen reader and for a person in a hurry.

export function describeOption(option: Option, basis: string): string {
  return `${option.name}: ${formatTime(option.time, basis)}, ${formatCost(option.cost, basis)}`;
}

export function summarize(curve: Curve, front: readonly Option[], options: readonly Option[]): string {
  const [fast, cheap] = [front[0], front[front.length - 1]];
  if (!fast || !cheap) {
    return options.length ? `None of ${pluralize(options.length, "option")} meets the limits.` : "Nothing is known yet.";
  }
  const basis = curve.basis;
  if (front.length === 1) return `One option is on the front: ${describeOption(fast, basis)}.`;
  const range = `from ${formatCost(cheap.cost, basis)} in ${formatTime(cheap.time, basis)} to ${formatCost(fast.cost, basis)} in ${formatTime(fast.time, basis)}`;
  const now = curve.current ? ` Running now: ${formatConfig(curve.current)}.` : "";
  return `${pluralize(front.length, "option")} on the front, ${range}. ${describeKnee(curve)}${now}`;
}

/** Below this share of samples, one knee says more than is known. */
export const SURE_SUPPORT = 0.6;

export function isKneeSure(curve: Curve): boolean {
  return curve.knee_bends && (curve.support === null || curve.support >= SURE_SUPPORT || curve.runner_up === null);
}

export function describeKnee(curve: Curve): string {
  if (!curve.knee) return "";
  if (!curve.knee_bends) return "No knee: the front bends nowhere.";
  const knee = formatConfig(curve.knee);
  const isChosen = curve.chosen === null || formatConfig(curve.chosen) === knee;
  const others = curve.other_knees.map(formatConfig).join(" and ");
  const twice = others ? ` The front bends at ${others}, too.` : "";
  if (curve.support === null || !isChosen) return `Knee: ${knee}.${twice}`;
  const share = formatPercent(curve.support);
  const runnerUp = curve.runner_up ? `, most often ${formatConfig(curve.runner_up)} otherwise` : "";
  return isKneeSure(curve)
    ? `Knee: ${knee}, in ${share} of samples${runnerUp}.${twice}`
    : `The knee is not sure: ${knee} in ${share} of samples${runnerUp}.${twice}`;
}
