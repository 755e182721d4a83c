import { least } from "./limits";
import type { Option } from "./options";

// How much worse the present choice can be than what is known, from the ends of the 80 % bands.

export interface Regret {
  amount: number;
  rival: Option;
}

/** Returns the most that an option costs beyond the best of those that are as fast; null where none is. */
export function regretOf(own: Option, options: readonly Option[]): Regret | null {
  const rival = least(
    options.filter((each) => each.id !== own.id && each.time <= own.time),
    (each) => each.costLow,
  );
  return rival && { amount: Math.max(own.costHigh - rival.costLow, 0), rival };
}
