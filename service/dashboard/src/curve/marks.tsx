import { memo } from "react";
import css from "./chart.module.css";
import type { Option, Shape } from "./options";
import { circle, cross, diamond, flag, square, star } from "./shapes";

const OUTLINE: Record<Shape, (r: number) => string> = {
  measured: circle,
  predicted: diamond,
  extrapolated: diamond,
  infeasible: cross,
};

export const SMALL = 4;
export const LARGE = 7;
export const RUNNING = 13;

/** One option: its shape says where its figures come from, or that limits exclude it. */
export const OptionMark = memo(function OptionMark(props: { option: Option; shape: Shape; x: number; y: number; size: number }) {
  const { option, shape, x, y, size } = props;
  const isDiamond = shape === "predicted" || shape === "extrapolated";
  return (
    <path
      className={css.mark}
      d={OUTLINE[shape](isDiamond ? size * 1.2 : shape === "infeasible" ? size * 0.8 : size)}
      transform={`translate(${x},${y})`}
      data-role={shape}
      data-config={option.id}
      data-x={option.time}
      data-y={option.cost}
    />
  );
});

/** Ranges of time and cost in which eight of ten outcomes lie. */
export function ErrorBars({ left, right, top, bottom, x, y }: Record<"left" | "right" | "top" | "bottom" | "x" | "y", number>) {
  return (
    <g className={css.errorBar} aria-hidden="true">
      <line x1={left} x2={right} y1={y} y2={y} />
      <line x1={x} x2={x} y1={top} y2={bottom} />
    </g>
  );
}

interface Overlay {
  option: Option;
  x: number;
  y: number;
}

const place = ({ option, x, y }: Overlay, role: string) => ({
  transform: `translate(${x},${y})`,
  "data-role": role,
  "data-config": option.id,
  "data-x": option.time,
  "data-y": option.cost,
  "aria-hidden": true as const,
});

export const KneeMark = (props: Overlay & { isSure: boolean }) => (
  <path className={css.knee} d={star(props.isSure ? 11 : 16)} data-sure={props.isSure} {...place(props, "knee")} />
);

// Frames stand around a star, so that a knee that runs now shows both.
export const RunningMark = (props: Overlay) => <path className={css.running} d={square(RUNNING)} {...place(props, "running")} />;

export const SelectedMark = (props: Overlay) => <path className={css.selected} d={circle(18)} {...place(props, "selected")} />;

export const PinnedMark = (props: Overlay) => (
  <g {...place(props, "pinned")}>
    <path className={css.pinned} d={flag(6)} transform="translate(16,-14)" />
  </g>
);

export function ActualMark({ x, y, seconds, cost }: { x: number; y: number; seconds: number; cost: number }) {
  return (
    <g transform={`translate(${x},${y})`} data-role="actual" data-x={seconds} data-y={cost} aria-hidden="true">
      <path className={css.actual} d={`${circle(9)}M-14,0H14M0,-14V14`} />
    </g>
  );
}

const ENTRIES: [label: string, draw: () => React.ReactNode][] = [
  ["measured", () => <path className={css.mark} data-role="measured" d={circle(5)} />],
  ["predicted", () => <path className={css.mark} data-role="predicted" d={diamond(6)} />],
  ["extrapolated", () => <path className={css.mark} data-role="extrapolated" d={diamond(6)} />],
  ["excluded by a limit", () => <path className={css.mark} data-role="infeasible" d={cross(4)} />],
  ["front, 80 % band", () => <Front />],
  ["knee", () => <path className={css.knee} d={star(8)} />],
  ["running now", () => <path className={css.running} d={square(6)} />],
  ["pinned", () => <path className={css.pinned} d={flag(5)} />],
  ["what it took", () => <path className={css.actual} d={`${circle(5)}M-9,0H9M0,-9V9`} />],
  ["earlier jobs", () => <path className={css.earlier} d="M-9,-5H0V5H9" />],
];

function Front() {
  return (
    <>
      <path className={css.band} d="M-9,-5H9V5H-9Z" />
      <path className={css.front} d="M-9,0H9" />
    </>
  );
}

export function Legend({ shown }: { shown: ReadonlySet<string> }) {
  return (
    <ul className={css.legend} aria-label="Signs">
      {ENTRIES.filter(([label]) => shown.has(label)).map(([label, draw]) => (
        <li key={label}>
          <svg width="22" height="20" viewBox="-11 -10 22 20" aria-hidden="true">
            {draw()}
          </svg>
          {label}
        </li>
      ))}
    </ul>
  );
}
