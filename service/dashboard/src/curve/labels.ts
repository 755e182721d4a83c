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
const DISTANCES = [14, 30, 52, 84];
const DIRECTIONS = [
  [1, -1],
  [1, 1],
  [-1, -1],
  [-1, 1],
  [0, -1],
  [0, 1],
  [1, 0],
  [-1, 0],
] as const;

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
    for (const [ring, distance] of DISTANCES.entries()) {
      for (const [dx, dy] of DIRECTIONS) {
        const box = {
          left: label.x + dx * distance + (dx === 0 ? -width / 2 : dx < 0 ? -width : 0),
          top: label.y + dy * distance + (dy === 0 ? -height / 2 : dy < 0 ? -height : 0),
          width,
          height,
        };
        const price = ring * 2 + priceOf(box, label, [...fixed, ...placed.map((each) => each.box)], marks, area);
        if (best === null || price < best.price) best = { box, price };
      }
    }
    if (best) placed.push({ ...label, box: best.box });
  }
  return placed;
}

function priceOf(
  box: Box,
  own: Wanted,
  taken: readonly Box[],
  marks: readonly { x: number; y: number; weight: number }[],
  area: Box,
): number {
  let price = 1000 * outside(box, area);
  for (const other of taken) if (overlaps(box, other)) price += 500;
  for (const mark of marks) {
    if (mark.x === own.x && mark.y === own.y) continue;
    if (contains(box, mark.x, mark.y, 6)) price += mark.weight;
  }
  if (contains(box, own.x, own.y, 8)) price += 400;
  return price;
}

function outside(box: Box, area: Box): number {
  const left = Math.max(area.left - box.left, 0);
  const right = Math.max(box.left + box.width - area.left - area.width, 0);
  const top = Math.max(area.top - box.top, 0);
  const bottom = Math.max(box.top + box.height - area.top - area.height, 0);
  return left + right + top + bottom > 0 ? 1 + (left + right + top + bottom) / 100 : 0;
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
