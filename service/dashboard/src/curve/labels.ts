// Where labels stand so that they cover neither each other nor the marks.

export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

export interface Wanted {
  id: string;
  x: number;
  y: number;
  lines: string[];
}

export interface Placed extends Wanted {
  box: Box;
}

const CHARACTER = 7.3; // wide enough for fonts with wide capitals and signs
const LINE = 15;
const PADDING = 5;
const DISTANCES = [14, 30, 52, 84, 130];
// How far a label stands from its mark along one axis, and on which side of it; 0 is centred.
const PLACES = [0, ...DISTANCES, ...DISTANCES.map((distance) => -distance)];

export function boxSize(lines: readonly string[]): { width: number; height: number } {
  const longest = Math.max(...lines.map((line) => line.length));
  return { width: longest * CHARACTER + 2 * PADDING, height: lines.length * LINE + 2 * PADDING - 3 };
}

/** Places labels one after the other, each where it covers least; the first ones choose first. */
export function placeLabels(
  wanted: readonly Wanted[],
  marks: readonly { x: number; y: number; weight: number }[],
  fixed: readonly Box[],
  area: Box,
): Placed[] {
  const placed: Placed[] = [];
  for (const label of wanted) {
    const { width, height } = boxSize(label.lines);
    let best: { box: Box; price: number } | null = null;
    for (const right of PLACES) {
      for (const down of PLACES) {
        const box = keepInside({ left: startOf(label.x, right, width), top: startOf(label.y, down, height), width, height }, area);
        const price = lengthOf(box, label) / 5 + priceOf(box, label, [...fixed, ...placed.map((each) => each.box)], marks);
        if (best === null || price < best.price) best = { box, price };
      }
    }
    if (best) placed.push({ ...label, box: best.box });
  }
  return placed;
}

function startOf(mark: number, distance: number, extent: number): number {
  if (distance === 0) return mark - extent / 2;
  return distance < 0 ? mark + distance - extent : mark + distance;
}

function keepInside(box: Box, area: Box): Box {
  const left = Math.max(Math.min(box.left, area.left + area.width - box.width), area.left);
  const top = Math.max(Math.min(box.top, area.top + area.height - box.height), area.top);
  return { ...box, left, top };
}

function lengthOf(box: Box, { x, y }: Wanted): number {
  const end = nearestPoint(box, x, y);
  return Math.hypot(end.x - x, end.y - y);
}

function priceOf(box: Box, own: Wanted, taken: readonly Box[], marks: readonly { x: number; y: number; weight: number }[]): number {
  let price = 0;
  for (const other of taken) if (overlaps(box, other)) price += 500;
  for (const mark of marks) {
    if (mark.x === own.x && mark.y === own.y) continue;
    if (contains(box, mark.x, mark.y, 6)) price += mark.weight;
  }
  if (contains(box, own.x, own.y, 8)) price += 400;
  return price;
}

export function overlaps(one: Box, other: Box): boolean {
  return (
    one.left < other.left + other.width &&
    other.left < one.left + one.width &&
    one.top < other.top + other.height &&
    other.top < one.top + one.height
  );
}

function contains(box: Box, x: number, y: number, margin: number): boolean {
  return x > box.left - margin && x < box.left + box.width + margin && y > box.top - margin && y < box.top + box.height + margin;
}

/** Returns where the line from a mark to its label ends: at the nearest point of the label's edge. */
export function leaderEnd({ box, x, y }: Placed): { x: number; y: number } {
  return nearestPoint(box, x, y);
}

function nearestPoint(box: Box, x: number, y: number): { x: number; y: number } {
  return {
    x: Math.min(Math.max(x, box.left), box.left + box.width),
    y: Math.min(Math.max(y, box.top), box.top + box.height),
  };
}

/** Moves labels at the right edge apart, keeping their order and as near to their lines as fits. */
export function spreadLabels<T extends { y: number }>(labels: readonly T[], top: number, bottom: number, height: number): T[] {
  const sorted = labels.toSorted((one, other) => one.y - other.y);
  const count = Math.min(sorted.length, Math.max(Math.floor((bottom - top) / height), 0));
  const kept = sorted.slice(0, count);
  const places: number[] = [];
  for (const [index, label] of kept.entries()) {
    places.push(Math.max(label.y, top, index ? (places[index - 1] ?? top) + height : top));
  }
  let limit = bottom;
  for (let index = places.length - 1; index >= 0; index--) {
    places[index] = Math.min(places[index] ?? limit, limit);
    limit = (places[index] ?? limit) - height;
  }
  return kept.map((label, index) => ({ ...label, y: places[index] ?? label.y }));
}
