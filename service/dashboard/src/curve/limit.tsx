import { useRef, type KeyboardEvent, type PointerEvent } from "react";
import { formatDollars, formatSeconds, pluralize } from "../parts/format";
import css from "./chart.module.css";
import type { LimitName } from "./limits";
import { boxSize, type Box } from "./labels";
import { keyStep, round } from "./limit-keys";
import { clamp, sideOf } from "./view";

export const LIMIT_WORDS: Record<LimitName, string> = { maxCost: "max_cost", maxTime: "max_time" };

interface Where {
  name: LimitName;
  value: number | null;
  domain: [number, number];
  scale: (value: number) => number;
  plot: Box;
  isNarrow: boolean;
  /** Whether the curve counts what is left, so that the line is what is left of the limit. */
  isLeft: boolean;
}

export interface PlacedLimit {
  at: number;
  side: "below" | "inside" | "above";
  amount: string;
  text: string;
  x: number;
  y: number;
  anchor: "start" | "end";
  /** What the text covers. */
  box: Box;
}

/** Returns where a limit and its name stand; beyond the view both wait at its edge. */
export function placeLimit({ name, value, domain, scale, plot, isNarrow, isLeft }: Where): PlacedLimit {
  const isCost = name === "maxCost";
  const [low, high] = domain;
  const side = value === null ? "above" : sideOf(value, domain);
  const at = scale(clamp(value ?? high, low, high));
  const amount = value === null ? "no limit" : `${(isCost ? formatDollars : formatSeconds)(value)}${isLeft ? " left" : ""}`;
  const arrow = side === "inside" ? "" : isCost ? (side === "above" ? " ▲" : " ▼") : side === "above" ? " ▸" : " ◂";
  const text = value === null ? `no ${LIMIT_WORDS[name]}${arrow}` : `${LIMIT_WORDS[name]} ${amount}${arrow}`;
  const isRight = at > plot.left + plot.width / 2;
  const x = isCost ? plot.left + 12 : at + (isRight ? -12 : 12);
  // On a narrow plot both names would meet at its top.
  const y = isCost ? at + (at - plot.top < 20 ? 17 : -7) : isNarrow ? plot.top + plot.height - 8 : plot.top + 16;
  const anchor = !isCost && isRight ? "end" : "start";
  const width = boxSize([text]).width;
  return { at, side, amount, text, x, y, anchor, box: { left: anchor === "end" ? x - width : x, top: y - 13, width, height: 17 } };
}

/** A limit as a line with its name, where it cannot be moved. */
export function LimitLine({ placed, name, plot }: { placed: PlacedLimit; name: LimitName; plot: Box }) {
  const { at, side, text, x, y, anchor } = placed;
  const isCost = name === "maxCost";
  return (
    <g className={css.limit} data-limit-line={name} data-side={side} aria-hidden="true">
      {side === "inside" && (isCost ? <line x1={plot.left} x2={plot.left + plot.width} y1={at} y2={at} /> : <line x1={at} x2={at} y1={plot.top} y2={plot.top + plot.height} />)}
      <text x={x} y={y} textAnchor={anchor}>
        {text}
      </text>
    </g>
  );
}

interface Props {
  name: LimitName;
  value: number | null;
  domain: [number, number];
  scale: ((value: number) => number) & { invert: (pixel: number) => number };
  placed: PlacedLimit;
  plot: Box;
  excluded: number;
  count: number;
  change: (name: LimitName, value: number | null) => void;
  svg: React.RefObject<SVGSVGElement | null>;
}

/** A limit as a line that is dragged, or moved by keys; beyond the view it waits at the edge. */
export function LimitSlider({ name, value, domain, scale, placed, plot, excluded, count, change, svg }: Props) {
  const isDragged = useRef(false);
  const isCost = name === "maxCost";
  const [low, high] = domain;
  const { at, side, amount, text, x, y, anchor } = placed;
  const words = LIMIT_WORDS[name];
  const valueText = value === null ? amount : `${amount}; excludes ${excluded} of ${pluralize(count, "option")}`;

  const move = (event: PointerEvent<SVGGElement>) => {
    if (!isDragged.current || !svg.current) return;
    const frame = svg.current.getBoundingClientRect();
    const pixel = isCost ? event.clientY - frame.top : event.clientX - frame.left;
    change(name, round(clamp(scale.invert(pixel), low, high), high - low));
  };
  const press = (event: KeyboardEvent<SVGGElement>) => {
    const next = keyStep(event.key, value ?? high, domain);
    if (next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    change(name, next === null ? null : round(next, high - low));
  };
  const right = plot.left + plot.width;
  const bottom = plot.top + plot.height;
  return (
    <g
      className={css.limit}
      role="slider"
      tabIndex={0}
      aria-label={words}
      aria-orientation={isCost ? "vertical" : "horizontal"}
      aria-valuemin={low}
      aria-valuemax={Math.max(high, value ?? high)}
      aria-valuenow={value ?? high}
      aria-valuetext={valueText}
      data-limit={name}
      data-value={value ?? ""}
      data-side={side}
      onKeyDown={press}
      onPointerDown={(event) => {
        isDragged.current = true;
        event.currentTarget.setPointerCapture(event.pointerId);
        event.stopPropagation();
      }}
      onPointerMove={move}
      onPointerUp={() => (isDragged.current = false)}
      onPointerCancel={() => (isDragged.current = false)}
    >
      {isCost ? (
        <>
          {side === "inside" && <line x1={plot.left} x2={right} y1={at} y2={at} />}
          <rect className={css.handle} x={plot.left} y={at - 12} width={plot.width} height={24} />
          <rect className={css.grip} x={plot.left - 5} y={at - 8} width={10} height={16} rx={3} />
        </>
      ) : (
        <>
          {side === "inside" && <line x1={at} x2={at} y1={plot.top} y2={bottom} />}
          <rect className={css.handle} x={at - 12} y={plot.top} width={24} height={plot.height} />
          <rect className={css.grip} x={at - 8} y={bottom - 5} width={16} height={10} rx={3} />
        </>
      )}
      <text x={x} y={y} textAnchor={anchor}>
        {text}
      </text>
    </g>
  );
}
