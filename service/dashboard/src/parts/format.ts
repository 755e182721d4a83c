import type { Config, Money, Order } from "../api/types";

// How figures are written: the same digits as the command line writes.

export const UNKNOWN = "–";

// Formats are made once: each takes longer to make than a row of a table takes to draw.
const IN_CENTS = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const formatsOf = (zone: { timeZone?: string }) => ({
  day: new Intl.DateTimeFormat("en-CA", zone),
  time: new Intl.DateTimeFormat("en-GB", { ...zone, hour: "numeric", minute: "numeric", second: "numeric", hour12: false }),
});
const [LOCAL, IN_UTC] = [formatsOf({}), formatsOf({ timeZone: "UTC" })];

/** Writes a number with three significant digits. */
export function formatNumber(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  if (value === 0) return "0";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en-US");
  const digits = Math.abs(value) < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(3)));
  return digits;
}

/** Writes seconds in a readable unit, rounded to what matters. */
export function formatSeconds(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds) || seconds < 0) return UNKNOWN;
  if (Math.round(seconds * 1000) < 1000) return `${Math.round(seconds * 1000)}ms`;
  if (Math.round(seconds * 10) < 600) return `${seconds.toFixed(1)}s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)}m${pad(whole % 60)}s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)}h${pad(minutes % 60)}m`;
  const hours = Math.round(seconds / 3600);
  return `${Math.floor(hours / 24)}d${pad(hours % 24)}h`;
}

/** Writes dollars with cents; amounts below one cent with three significant digits. */
export function formatDollars(amount: number | string | null | undefined): string {
  const value = toNumber(amount);
  if (value === null) return UNKNOWN;
  const sign = value < 0 ? "-" : "";
  const size = Math.abs(value);
  if (size === 0 || size >= 0.01) {
    return `${sign}$${IN_CENTS.format(size)}`;
  }
  return `${sign}$${size.toFixed(Math.min(2 - Math.floor(Math.log10(size)), 12))}`;
}

/** The stack of a script as it is written, which names leave out. */
export const EAGER = "eager";

export function formatMoney(money: Money | null | undefined): string {
  if (!money) return UNKNOWN;
  const amount = formatDollars(money.amount);
  return money.currency === "USD" ? amount : `${amount.replace("$", "")} ${money.currency}`;
}

export function formatConfig(config: Partial<Config> | null | undefined): string {
  if (!config) return UNKNOWN;
  const stack = config.stack && config.stack !== EAGER ? ` ${config.stack}` : "";
  return `K=${config.workers} B=${config.global_batch}${stack}`;
}

/** Says what an order asks for, as the command line does. */
export function describeOrder({ kind, wish }: Pick<Order, "kind" | "wish">): string {
  const { to, limits, objective } = wish as { to?: string | Config; limits?: Record<string, string | null>; objective?: unknown };
  if (kind === "pause" || kind === "resume") return kind;
  if (kind === "probe") return `probe ${formatConfig(wish as unknown as Config)}`;
  if (to) return `${kind} to ${typeof to === "string" ? to : formatConfig(to)}`;
  const own = objective === undefined ? {} : { objective: typeof objective === "string" ? objective : JSON.stringify(objective) };
  const wanted = Object.entries({ ...limits, ...own });
  return `${kind} ${wanted.map(([name, value]) => `${name} to ${value ?? "none"}`).join(", ")}`;
}

/** Writes a share in percent. */
export function formatPercent(share: number | null | undefined): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return UNKNOWN;
  const percent = 100 * share;
  return `${Math.abs(percent) >= 10 || percent === 0 ? Math.round(percent) : Number(percent.toPrecision(2))} %`;
}

/** Writes a time or cost of a curve; a relative curve counts in multiples of the start's. */
export function formatTime(seconds: number, basis: string): string {
  return basis === "relative" ? `×${formatNumber(seconds)}` : formatSeconds(seconds);
}

export function formatCost(dollars: number | string, basis: string): string {
  return basis === "relative" ? `×${formatNumber(toNumber(dollars))}` : formatDollars(dollars);
}

/** Writes how long ago or ahead a moment is. */
export function formatAge(moment: string | number | null | undefined, now: number): string {
  if (moment === null || moment === undefined) return UNKNOWN;
  const seconds = (now - new Date(moment).getTime()) / 1000;
  // Clocks differ a little, and what was answered just now is of no later moment.
  if (Math.abs(seconds) < 2) return "now";
  return seconds < 0 ? `in ${roughly(-seconds)}` : `${roughly(seconds)} ago`;
}

function roughly(seconds: number): string {
  if (seconds < 60) return `${Math.round(seconds)}s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)}m`;
  if (seconds < 86_400) return `${Math.round(seconds / 3600)}h`;
  return `${Math.round(seconds / 86_400)}d`;
}

/** Writes a moment with its date where that is not today's, in UTC or the browser's zone. */
export function formatMoment(moment: string | number | null | undefined, isUtc: boolean, now: number): string {
  if (moment === null || moment === undefined) return UNKNOWN;
  const date = new Date(moment);
  const { day, time } = isUtc ? IN_UTC : LOCAL;
  const written = `${time.format(date)}${isUtc ? "Z" : ""}`;
  return day.format(date) === day.format(now) ? written : `${day.format(date)} ${written}`;
}

export function toNumber(value: number | string | null | undefined): number | null {
  if (value === null || value === undefined || value === "") return null;
  const number = typeof value === "string" ? Number(value) : value;
  return Number.isFinite(number) ? number : null;
}

export function pluralize(count: number, thing: string): string {
  return `${count.toLocaleString("en-US")} ${thing}${count === 1 ? "" : "s"}`;
}

function pad(value: number): string {
  return String(value).padStart(2, "0");
}
