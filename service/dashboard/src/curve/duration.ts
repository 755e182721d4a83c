const UNITS: Record<string, number> = { d: 86_400, h: 3600, m: 60, s: 1 };

/** Reads a duration such as 3h12m, 90m or 45s; a bare number is seconds; null for what is none. */
export function parseDuration(text: string): number | null {
  const trimmed = text.trim().toLowerCase();
  if (/^\d+(\.\d+)?$/.test(trimmed)) return Number(trimmed);
  if (!/^(\d+(\.\d+)?[dhms]\s*)+$/.test(trimmed)) return null;
  let seconds = 0;
  for (const [, amount, unit] of trimmed.matchAll(/(\d+(?:\.\d+)?)([dhms])/g)) {
    seconds += Number(amount) * (UNITS[unit ?? ""] ?? 0);
  }
  return seconds;
}

/** Reads an amount such as 3.40, $3.40, 3.40 USD or $1,000.00 as pages write it; null for what is none. */
export function parseDollars(text: string): number | null {
  const found = /^\$?\s*(\d+(?:\.\d+)?)\s*(usd)?$/i.exec(text.trim().replaceAll(/,(?=\d{3})/g, ""));
  return found ? Number(found[1]) : null;
}

/** Writes seconds so that a job's document reads the same number. */
export function writeSeconds(seconds: number): string {
  return `${Number(seconds.toFixed(3))}s`;
}

/** Writes dollars so that a job's document reads the same number, without an exponent. */
export function writeDollars(amount: number): string {
  return `${Number(amount.toPrecision(6)).toFixed(12).replace(/\.?0+$/, "")} USD`;
}
