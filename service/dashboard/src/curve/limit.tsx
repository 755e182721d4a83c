import { useRef, type KeyboardEvent, type PointerEvent } from "react";
import { formatDollars, formatSeconds, pluralize } from "../parts/format";
import css from "./chart.module.css";
import type { LimitName } from "./limits";
import type { Box } from "./labels";
import { keyStep, round } from "./limit-keys";
import { clamp, sideOf } from "./view";

export const LIMIT_WORDS: Record<LimitName, string> = { maxCost: "max_cost", maxTime: "max_time" };

interface Props {
  name: LimitName;
  value: number | null;
  domain: [number, number];
  scale: ((value: number) => number) & { invert: (pixel: number) => number };
  plot: Box;
  excluded: number;
  count: number;
  change: (name: LimitName, value: number | null) => void;
  svg: React.RefObject<SVGSVGElement | null>;
}

/** A limit as a line that is dragged, or moved by keys; beyond the view it waits at the edge. */
export function LimitSlider({ name, value, domain, scale, plot, excluded, count, change, svg }: Props) {
  const isDragged = useRef(false);
  const isCost = name === "maxCost";
  const [low, high] = domain;
  const side = value === null ? "above" : sideOf(value, domain);
  const at = scale(clamp(value ?? high, low, high));
  const write = isCost ? formatDollars : formatSeconds;
  const words = LIMIT_WORDS[name];
  const amount = value === null ? "no limit" : write(value);
  const valueText =
    value === null ? "no limit" : `${amount}; excludes ${excluded} of ${pluralize(count, "option")}`;

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
  const arrow = side === "inside" ? "" : isCost ? (side === "above" ? " ▲" : " ▼") : side === "above" ? " ▸" : " ◂";
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
          <text x={plot.left + 12} y={at + (at - plot.top < 20 ? 17 : -7)}>
            {value === null ? `no ${words}${arrow}` : `${words} ${amount}${arrow}`}
          </text>
        </>
      ) : (
        <>
          {side === "inside" && <line x1={at} x2={at} y1={plot.top} y2={bottom} />}
          <rect className={css.handle} x={at - 12} y={plot.top} width={24} height={plot.height} />
          <rect className={css.grip} x={at - 8} y={bottom - 5} width={16} height={10} rx={3} />
          <text x={at + (at > plot.left + plot.width / 2 ? -12 : 12)} y={plot.top + 16} textAnchor={at > plot.left + plot.width / 2 ? "end" : "start"}>
            {value === null ? `no ${words}${arrow}` : `${words} ${amount}${arrow}`}
          </text>
        </>
      )}
    </g>
  );
}
