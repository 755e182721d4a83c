import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Series } from "../api/types";
import { formatNumber, formatSeconds } from "../parts/format";
import { usePreferences } from "../parts/preferences";
import { useSize } from "../parts/size";
import css from "./telemetry.module.css";

const HEIGHT = 210;
const STEPS = new Set(["workers", "global_batch"]);

/** Draws series as the bands between their least and greatest values; a gap stays a gap. */
export function Plot({ series, zoom, sync }: { series: readonly Series[]; zoom: (from: number, to: number) => void; sync: string }) {
  const [frame, { width }] = useSize<HTMLDivElement>();
  const chart = useRef<uPlot | null>(null);
  const { theme, isUtc } = usePreferences();
  useEffect(() => {
    if (!frame.current || width === 0) return undefined;
    const colours = getComputedStyle(document.documentElement);
    const read = (name: string) => colours.getPropertyValue(name).trim();
    const lines = [read("--front"), read("--knee"), read("--running")];
    const write = (value: number) => (series[0]?.unit === "s" ? formatSeconds(value) : formatNumber(value));
    const plot = new uPlot(
      {
        width,
        height: HEIGHT,
        legend: { show: series.length > 1, live: true },
        cursor: { sync: { key: sync }, drag: { x: true, y: false, setScale: false } },
        axes: [
          { stroke: read("--muted"), grid: { stroke: read("--line") }, ticks: { stroke: read("--line") }, space: 70, values: (_, ticks) => ticks.map((at) => writeTick(at, ticks, isUtc)) },
          { stroke: read("--muted"), grid: { stroke: read("--line") }, ticks: { stroke: read("--line") }, size: (_, written) => axisWidth(written), values: (_, ticks) => ticks.map(write) },
        ],
        series: [
          {},
          ...series.flatMap((each, index) => {
            const stroke = lines[index % lines.length] ?? "black";
            const dash = index ? [6, 3 * index] : [];
            // A count of workers holds until the next one; it does not grow from one to the other.
            const paths = STEPS.has(each.name) ? uPlot.paths.stepped?.({ align: 1 }) : undefined;
            const value = (_: uPlot, found: number | null) => (found === null ? "–" : write(found));
            return [
              { label: each.name, stroke, dash, width: 1.5, spanGaps: false, points: { show: false, filter: findLonePoints }, value, ...(paths ? { paths } : {}) },
              { label: `${each.name} most`, stroke, dash, width: 1, spanGaps: false, points: { show: false, filter: findLonePoints }, value, ...(paths ? { paths } : {}) },
            ];
          }),
        ],
        bands: series.map((_, index) => ({ series: [2 * index + 2, 2 * index + 1] as [number, number], fill: `${lines[index % lines.length] ?? "#000000"}33` })),
        hooks: {
          setSelect: [
            (own) => {
              if (own.select.width < 8) return;
              zoom(own.posToVal(own.select.left, "x"), own.posToVal(own.select.left + own.select.width, "x"));
              own.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            },
          ],
        },
      },
      align(series),
      frame.current,
    );
    chart.current = plot;
    return () => plot.destroy();
    // eslint-disable-next-line
  }, [width, theme, isUtc, series.length, series[0]?.name, sync]);
  useEffect(() => chart.current?.setData(align(series)), [series]);
  return <div ref={frame} className={css.plot} role="img" aria-label={describe(series)} />;
}

/** Returns the pixels that the widest tick and the mark beside it need. */
function axisWidth(written: readonly string[] | null): number {
  return Math.max(62, 8 * Math.max(...(written ?? []).map((text) => text.length), 0) + 22);
}

/** Writes a tick with its date where ticks are a day apart, and with seconds where they are less than a minute apart. */
function writeTick(at: number, ticks: readonly number[], isUtc: boolean): string {
  const step = ticks.length > 1 ? (ticks[1] ?? 0) - (ticks[0] ?? 0) : 3600;
  const date = new Date(at * 1000);
  const zone = isUtc ? { timeZone: "UTC" } : {};
  if (step >= 86_400) return date.toLocaleDateString("en-CA", zone);
  return date.toLocaleTimeString("en-GB", { ...zone, hour: "2-digit", minute: "2-digit", ...(step < 60 ? { second: "2-digit" as const } : {}) });
}

export const toSeconds = (at: string | number) => (typeof at === "number" ? at : new Date(at).getTime() / 1000);

/** Brings series onto one axis of time; uPlot draws a line through undefined and a gap at null. */
function align(series: readonly Series[]): uPlot.AlignedData {
  return uPlot.join(
    series.map((each) => [each.at.map(toSeconds), each.low, each.high] as uPlot.AlignedData),
    series.map(() => [2, 2, 2]),
  );
}

/** Finds values with a gap on either side: no line is drawn there, so a point is. */
function findLonePoints(plot: uPlot, index: number): number[] | null {
  const values = plot.data[index] ?? [];
  // Undefined is a moment of another series, and no gap.
  const own = [...values.keys()].filter((place) => values[place] !== undefined);
  const has = (place: number | undefined) => place !== undefined && values[place] !== null;
  const lone = own.filter((place, order) => has(place) && !has(own[order - 1]) && !has(own[order + 1]));
  return lone.length > 0 ? lone : null;
}

function describe(series: readonly Series[]): string {
  return series
    .map((each) => {
      const known = [...each.low, ...each.high].filter((value) => value !== null);
      if (known.length === 0) return `${each.name}: nothing recorded`;
      const [least, most] = known.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
      return `${each.name} between ${formatNumber(least)} and ${formatNumber(most)} ${each.unit}`;
    })
    .join("; ");
}
