import { expect, test } from "vitest";
import { parseDollars, parseDuration, writeDollars, writeSeconds } from "../curve/duration";
import { describeOrder, formatAge, formatDollars, formatMoney, formatNumber, formatPercent, formatSeconds } from "./format";
import { sortRows, toCsv } from "./table-rows";

test.each([
  [0.25, "250ms"], [43.21, "43.2s"], [300, "5m00s"], [3900, "1h05m"], [59.96, "1m00s"], [3599.7, "1h00m"], [200_000, "2d08h"], [null, "–"], [Number.NaN, "–"], [-1, "–"],
] as const)("%s seconds are written %s", (seconds, text) => expect(formatSeconds(seconds)).toBe(text));

test.each([
  [3.4, "$3.40"], ["0.5", "$0.50"], [0.05, "$0.05"], [0.00123456, "$0.00123"], [0, "$0.00"], ["1234.5", "$1,234.50"], [-0.2, "-$0.20"], [null, "–"], ["", "–"],
] as const)("%s dollars are written %s", (amount, text) => expect(formatDollars(amount)).toBe(text));

test.each([
  ["resize", { to: "cheapest" }, "resize to cheapest"],
  ["resize", { to: { workers: 2, global_batch: 64 } }, "resize to K=2 B=64"],
  ["probe", { workers: 1, global_batch: 16 }, "probe K=1 B=16"],
  ["pause", {}, "pause"],
  ["change", { limits: { max_cost: "5.00 USD", max_time: null }, objective: "knee" }, "change max_cost to 5.00 USD, max_time to none, objective to knee"],
] as const)("an order to %s by %o is said", (kind, wish, words) => expect(describeOrder({ kind, wish })).toBe(words));

test("other currencies keep their name", () => expect(formatMoney({ amount: "2", currency: "EUR" })).toBe("2.00 EUR"));

test.each([[0.98765, "0.988"], [12, "12"], [1234.5, "1,235"], [0, "0"], [0.00001234, "1.23e-5"], [null, "–"]] as const)("%s is written %s", (value, text) =>
  expect(formatNumber(value)).toBe(text),
);

test.each([[0.643, "64 %"], [0.02453, "2.5 %"], [0, "0 %"], [1, "100 %"]] as const)("the share %s is %s", (share, text) => expect(formatPercent(share)).toBe(text));

test.each([["3h12m", 11_520], ["90m", 5400], ["45s", 45], ["1.5h", 5400], ["30", 30], ["1d2h", 93_600], ["later", null], ["3x", null]] as const)("%s is a duration of %s", (text, seconds) =>
  expect(parseDuration(text)).toBe(seconds),
);

test.each([["3.40", 3.4], ["$3.40", 3.4], ["3.40 USD", 3.4], ["a lot", null], ["-1", null]] as const)("%s is an amount of %s", (text, dollars) => expect(parseDollars(text)).toBe(dollars));

test("what is written for a document reads as the same number", () => {
  for (const value of [0.0000123, 0.5, 3.4, 1234.56]) expect(parseDollars(writeDollars(value))).toBeCloseTo(value, 9);
  for (const value of [0.5, 45, 11_520]) expect(parseDuration(writeSeconds(value))).toBe(value);
});

test("what was answered just now is of no later moment", () => expect(formatAge(1000, 500)).toBe("now"));

const COLUMNS = [{ name: "k", value: (row: (string | number | null)[]) => row[0] ?? null, cell: () => null }];

test("rows without a value come last in either order", () => {
  const rows = [[null], [2], [1]];
  expect(sortRows(rows, COLUMNS, { column: "k", isDescending: false })).toEqual([[1], [2], [null]]);
  expect(sortRows(rows, COLUMNS, { column: "k", isDescending: true })).toEqual([[2], [1], [null]]);
});

test("a name that begins like a formula is no formula in a spreadsheet", () => {
  expect(toCsv([["=1+1"], ['a "b", c'], [-2]], COLUMNS)).toBe("k\r\n'=1+1\r\n\"a \"\"b\"\", c\"\r\n-2\r\n");
});
