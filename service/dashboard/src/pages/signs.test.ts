import { expect, test } from "vitest";
import type { Event } from "../api/types";
import { legendOf, signOf, signedEvents } from "./signs";

const event = (sequence: number, kind: string, second: number): Event => ({ sequence, kind, at: new Date(1000 * second).toISOString(), message: kind }) as Event;
const x = (at: number) => at / 100; // ten pixels a second

test("what matters most is drawn where events are close, and nothing over another", () => {
  const events = [event(1, "hello", 0), event(2, "launch", 0.1), event(3, "choice", 0.2), event(4, "probe", 0.3), event(5, "probe", 4), event(6, "vm_gone", 4.1), event(7, "failed", 9)];
  expect(signedEvents(events, x).map((each) => each.kind)).toEqual(["choice", "vm_gone", "failed"]);
  expect(signedEvents(events, (at) => at).map((each) => each.kind)).toEqual(["choice", "probe", "probe", "vm_gone", "failed"]);
});

test("each event that is drawn has a sign, and each sign its words below", () => {
  const kinds = ["choice", "probe", "interruption_notice", "vm_gone", "order", "drift", "not_finite", "budget", "succeeded", "framework"];
  const events = kinds.map((kind, index) => event(index, kind, 10 * index));
  const drawn = signedEvents(events, x);
  expect(drawn).toHaveLength(kinds.length);
  for (const each of drawn) expect(legendOf(drawn)).toContain(`${signOf(each)?.sign} ${signOf(each)?.words}`);
  expect(signOf({ kind: "hello" })).toBeNull();
});
