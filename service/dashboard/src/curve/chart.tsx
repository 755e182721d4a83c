import { AxisBottom, AxisLeft } from "@visx/axis";
import { scaleLinear, scaleLog } from "@visx/scale";
import { useId, useMemo, useRef, useState, type KeyboardEvent } from "react";
import type { Curve } from "../api/types";
import { formatCost, formatPercent, formatTime } from "../parts/format";
import { useSize } from "../parts/size";
import css from "./chart.module.css";
import type { EarlierFront } from "./earlier";
import { alongSteps, bandPath, batchCurves, linePath, stepPath } from "./front";
import { leaderEnd, placeLabels, spreadLabels, type Wanted } from "./labels";
import { LimitLine, LimitSlider, placeLimit } from "./limit";
import { countExcluded, least, type LimitName } from "./limits";
import { ActualMark, ErrorBars, KneeMark, LARGE, Legend, OptionMark, PinnedMark, RUNNING, RunningMark, SMALL, SelectedMark } from "./marks";
import { configId, shapeOf, type Limits, type Option } from "./options";
import { isKneeSure, summarize } from "./summary";
import { formatTick, logTicks, timeTicks, valueTicks } from "./ticks";
import { clamp, fitView, keepView, sideOf, type AxisKind, type View } from "./view";

export interface Actual {
  seconds: number;
  cost: number;
}

interface Props {
  /** The answer whose options decide what part of the plane is shown. */
  frame: Curve;
  curve: Curve;
  options: readonly Option[];
  front: readonly Option[];
  excluded: ReadonlySet<string>;
  limits: Limits;
  selected: string | null;
  /** Missing where nothing is selected: the front is then read, and not walked. */
  select?: (id: string) => void;
  changeLimit: ((name: LimitName, value: number | null) => void) | null;
  pinned: string | null;
  actual: Actual | null;
  isWhole: boolean;
  axes?: AxisKind;
  /** Fronts of earlier jobs, which are drawn faint. */
  earlier?: readonly EarlierFront[];
  isDegraded: boolean;
  label: string;
}

const DASHES = ["", "7 4", "2 3", "9 3 2 3", "12 4", "4 2", "1 4", "9 3 2 3 2 3"];
const HIT_RADIUS = 18;
const STEP_SAMPLES = 18; // pixels between places of the front that labels rather leave free
const NONE: readonly EarlierFront[] = [];
const LIMIT_NAMES = ["maxCost", "maxTime"] as const;

/** The cost/time plane of a job: options, front, limits. Its table twin says the same in words. */
export function CurveChart(props: Props) {
  const { curve, options, front, excluded, limits, selected, select, changeLimit, pinned, actual, axes = "linear", earlier = NONE } = props;
  const [figure, size] = useSize<HTMLDivElement>();
  const svg = useRef<SVGSVGElement>(null);
  const summary = useId();
  const clip = useId();
  const [hovered, setHovered] = useState<Option | null>(null);
  const [roving, setRoving] = useState(0);
  const width = Math.max(size.width, 280);
  const isNarrow = width < 560;
  const height = Math.round(Math.min(Math.max(width * 0.58, 320), 560));
  const plot = useMemo(
    () => ({ left: isNarrow ? 54 : 78, top: 16, width: width - (isNarrow ? 104 : 146), height: height - 64 }),
    [width, height, isNarrow],
  );
  const byId = useMemo(() => new Map(options.map((option) => [option.id, option])), [options]);
  const find = (id: string | null) => (id === null ? undefined : byId.get(id));
  const knee = find(configId(curve.knee));
  const runnerUp = find(configId(curve.runner_up));
  const current = find(configId(curve.current));
  const chosen = find(configId(curve.chosen));
  const held = find(pinned);
  const picked = find(selected);

  // The view stays while a limit is dragged: the line would run away from the pointer.
  const otherKnees = curve.other_knees.flatMap((config) => find(configId(config)) ?? []).filter((option) => !excluded.has(option.id));
  const way = [axes, props.isWhole, props.frame.basis, props.frame.decision, earlier.map((each) => each.id)].join();
  const shownBefore = useRef<{ way: string; view: View } | null>(null);
  const settled = useMemo(() => {
    const fitted = fitView(options, front, [current, chosen, picked, ...earlier.flatMap((each) => each.front)].filter((option) => option !== undefined), excluded, limits, props.isWhole, axes);
    const view = shownBefore.current?.way === way ? keepView(shownBefore.current.view, fitted) : fitted;
    shownBefore.current = { way, view };
    return view;
    // eslint-disable-next-line
  }, [props.frame, way]);
  const scaleOf = axes === "log" ? scaleLog<number> : scaleLinear<number>;
  const x = useMemo(() => scaleOf({ domain: settled.time, range: [plot.left, plot.left + plot.width] }), [settled, plot]);
  const y = useMemo(() => scaleOf({ domain: settled.cost, range: [plot.top + plot.height, plot.top] }), [settled, plot]);
  const isInside = (option: Option) => sideOf(option.time, settled.time) === "inside" && sideOf(option.cost, settled.cost) === "inside";

  const frontIds = useMemo(() => new Set(front.map((option) => option.id)), [front]);
  const lines = useMemo(() => batchCurves(options), [options]);
  const rest = useMemo(() => options.filter((option) => !frontIds.has(option.id)), [options, frontIds]);
  const basis = curve.basis;
  const isSure = isKneeSure(curve);
  const hasKnee = knee !== undefined && curve.knee_bends && !excluded.has(knee.id);

  const ends = useMemo(() => {
    const found = lines.flatMap((line, index) => {
      const end = least(line.options.filter(isInside), (option) => -option.time);
      if (!end) return [];
      const reach = end.id === current?.id ? RUNNING + 5 : frontIds.has(end.id) ? LARGE + 5 : SMALL + 5;
      const labelX = Math.min(x(end.time) + reach, width - 7 * `B=${line.batch}`.length);
      return [{ batch: line.batch, index, labelX, y: y(end.cost) }];
    });
    return spreadLabels(found, plot.top + 8, plot.top + plot.height - 6, 13);
    // eslint-disable-next-line
  }, [lines, x, y, plot, width, current, frontIds]);

  const isLeft = basis === "remaining";
  const placedLimits = {
    maxCost: placeLimit({ name: "maxCost", value: limits.maxCost, domain: settled.cost, scale: y, plot, isNarrow, isLeft }),
    maxTime: placeLimit({ name: "maxTime", value: limits.maxTime, domain: settled.time, scale: x, plot, isNarrow, isLeft }),
  };
  // A limit that is none is named only where it can be set.
  const shownLimits = LIMIT_NAMES.filter((name) => basis !== "relative" && (changeLimit !== null || limits[name] !== null));

  const labels = useMemo(() => {
    const wanted: Wanted[] = [];
    const add = (option: Option | undefined, name: string) => {
      if (!option || !isInside(option)) return;
      const same = wanted.find((label) => label.id === option.id);
      if (same) {
        same.lines[0] = `${same.lines[0]?.split("  ")[0]}, ${name}  ${option.name}`;
        return;
      }
      const figures = `${formatTime(option.time, basis)} · ${formatCost(option.cost, basis)}`;
      wanted.push({ id: option.id, x: x(option.time), y: y(option.cost), lines: [`${name}  ${option.name}`, figures] });
    };
    if (hasKnee) add(knee, isSure ? "knee" : "knee?");
    if (hasKnee && !isSure) add(runnerUp, "or knee?");
    for (const option of hasKnee ? otherKnees : []) add(option, "second knee");
    add(current, "running");
    if (chosen && chosen !== current) add(chosen, "chosen");
    add(front[0], "fastest");
    add(front[front.length - 1], "cheapest");
    if (isNarrow) for (const label of wanted) label.lines = [label.lines[0]?.split("  ")[0] ?? ""];
    const marks = options.filter(isInside).map((option) => ({ x: x(option.time), y: y(option.cost), weight: frontIds.has(option.id) ? 12 : 3 }));
    marks.push(...alongSteps(front, x, y, STEP_SAMPLES).map((place) => ({ ...place, weight: 2 })));
    const names = ends.map((end) => ({ left: end.labelX, top: end.y - 8, width: 7 * `B=${end.batch}`.length, height: 13 }));
    const frames = current && isInside(current) ? [{ left: x(current.time) - RUNNING, top: y(current.cost) - RUNNING, width: 2 * RUNNING, height: 2 * RUNNING }] : [];
    const limitNames = shownLimits.map((name) => placedLimits[name].box);
    return placeLabels(wanted, marks, [...names, ...frames, ...limitNames], plot);
    // eslint-disable-next-line
  }, [x, y, front, curve, plot, excluded, ends]);

  const nearest = (event: { clientX: number; clientY: number }): Option | null => {
    const box = svg.current?.getBoundingClientRect();
    if (!box) return null;
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const distance = (option: Option) => Math.hypot(x(option.time) - px, y(option.cost) - py);
    const found = least(options.filter(isInside), distance);
    return found && distance(found) <= HIT_RADIUS ? found : null;
  };
  const walk = (event: KeyboardEvent) => {
    const target = { ArrowRight: roving + 1, ArrowDown: roving + 1, ArrowLeft: roving - 1, ArrowUp: roving - 1, Home: 0, End: front.length - 1 }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    const next = Math.min(Math.max(target, 0), front.length - 1);
    setRoving(next);
    svg.current?.querySelector<SVGGElement>(`[data-front="${next}"]`)?.focus();
  };
  const costTop = limits.maxCost === null ? plot.top : y(clamp(limits.maxCost, ...settled.cost));
  const timeLeft = limits.maxTime === null ? plot.left + plot.width : x(clamp(limits.maxTime, ...settled.time));
  const outside = options.filter((option) => !isInside(option)).length;
  const isActualShown = actual !== null && sideOf(actual.seconds, settled.time) === "inside" && sideOf(actual.cost, settled.cost) === "inside";
  const shown = legendOf(options, excluded, { hasKnee, hasRunning: current !== undefined, hasPinned: held !== undefined, hasFront: front.length > 0, hasActual: isActualShown, hasEarlier: earlier.length > 0 });
  const tabStop = Math.min(roving, front.length - 1);
  return (
    <figure className={css.figure} ref={figure} aria-label={props.label}>
      <p id={summary} className="hidden-text">
        {summarize(curve, front, options)}
      </p>
      <svg
        ref={svg}
        className={`${css.svg} ${props.isDegraded ? css.isDegraded : ""}`}
        width={width}
        height={height}
        role="group"
        aria-labelledby={summary}
        data-chart="curve"
        data-plot={[plot.left, plot.top, plot.width, plot.height].join(",")}
        data-axes={axes}
        data-time-domain={settled.time.join(",")}
        data-cost-domain={settled.cost.join(",")}
        onPointerMove={(event) => setHovered(nearest(event))}
        onPointerLeave={() => setHovered(null)}
        onClick={(event) => {
          const option = nearest(event);
          if (option) select?.(option.id);
        }}
      >
        <defs>
          <clipPath id={clip}>
            <rect x={plot.left} y={plot.top} width={plot.width} height={plot.height} />
          </clipPath>
        </defs>
        <g aria-hidden="true">
          <rect className={css.shade} data-shade="maxCost" x={plot.left} y={plot.top} width={plot.width} height={costTop - plot.top} />
          <rect className={css.shade} data-shade="maxTime" x={timeLeft} y={plot.top} width={plot.left + plot.width - timeLeft} height={plot.height} />
          <Axes x={x} y={y} plot={plot} curve={curve} isNarrow={isNarrow} time={settled.time} cost={settled.cost} axes={axes} />
          <g clipPath={`url(#${clip})`}>
            {lines.map((line, index) => (
              <path
                key={line.batch}
                className={css.batch}
                d={linePath(line.options, x, y)}
                strokeDasharray={DASHES[index % DASHES.length]}
                data-role="batch"
                data-batch={line.batch}
              />
            ))}
            {earlier.map((each) => (
              <path key={each.id} className={css.earlier} d={stepPath(each.front, x, y)} data-role="earlier" data-job={each.id} />
            ))}
            <path className={css.band} d={bandPath(front, x, y)} data-role="band" />
            <path className={css.front} d={stepPath(front, x, y)} data-role="front" />
          </g>
          {earlier.map((each) => {
            const end = least(each.front.filter(isInside), (option) => -option.time);
            return (
              end && (
                <text key={each.id} className={css.earlierLabel} x={Math.min(x(end.time) + 6, plot.left + plot.width)} y={y(end.cost) - 5} textAnchor={x(end.time) > plot.left + plot.width * 0.8 ? "end" : "start"}>
                  {each.name}
                </text>
              )
            );
          })}
          {rest.filter(isInside).map((option) => (
            <OptionMark key={option.id} option={option} shape={shapeOf(option, excluded.has(option.id))} x={x(option.time)} y={y(option.cost)} size={SMALL} />
          ))}
          {chosen && current && chosen !== current && isInside(chosen) && isInside(current) && (
            <path className={css.move} data-role="move" d={arcPath(x(current.time), y(current.cost), x(chosen.time), y(chosen.cost))} />
          )}
          {current && isInside(current) && <RunningMark option={current} x={x(current.time)} y={y(current.cost)} />}
          {picked && isInside(picked) && <SelectedMark option={picked} x={x(picked.time)} y={y(picked.cost)} />}
          {held && isInside(held) && <PinnedMark option={held} x={x(held.time)} y={y(held.cost)} />}
        </g>
        {shownLimits.map((name) =>
          changeLimit === null ? (
            <LimitLine key={name} name={name} placed={placedLimits[name]} plot={plot} />
          ) : (
            <LimitSlider
              key={name}
              name={name}
              value={limits[name]}
              domain={name === "maxCost" ? settled.cost : settled.time}
              scale={name === "maxCost" ? y : x}
              placed={placedLimits[name]}
              plot={plot}
              excluded={countExcluded(options, limits, name)}
              count={options.length}
              change={changeLimit}
              svg={svg}
            />
          ),
        )}
        <g aria-label="Options on the front, from fast to cheap" role="group" onKeyDown={walk}>
          {front.map((option, index) => (
            <g
              key={option.id}
              className={css.frontMark}
              role={select ? "button" : "img"}
              tabIndex={select ? (index === tabStop ? 0 : -1) : undefined}
              aria-pressed={select ? option.id === selected : undefined}
              aria-label={`${option.name}, ${formatTime(option.time, basis)}, ${formatCost(option.cost, basis)}, ${option.source}${tagsOf(option, curve, pinned)}`}
              data-front={index}
              data-config={option.id}
              onFocus={() => {
                setRoving(index);
                setHovered(option);
              }}
              onBlur={() => setHovered(null)}
              onKeyDown={(event) => {
                if (!select || (event.key !== "Enter" && event.key !== " ")) return;
                event.preventDefault();
                select(option.id);
              }}
              visibility={isInside(option) ? undefined : "hidden"}
            >
              <ErrorBars left={x(option.timeLow)} right={x(option.timeHigh)} top={y(option.costHigh)} bottom={y(option.costLow)} x={x(option.time)} y={y(option.cost)} />
              <circle className={css.halo} cx={x(option.time)} cy={y(option.cost)} r={14} />
              <OptionMark option={option} shape={option.source} x={x(option.time)} y={y(option.cost)} size={LARGE} />
            </g>
          ))}
        </g>
        {hasKnee && <KneeMark option={knee} x={x(knee.time)} y={y(knee.cost)} isSure={isSure} />}
        {hasKnee && otherKnees.filter(isInside).map((option) => <KneeMark key={option.id} option={option} x={x(option.time)} y={y(option.cost)} isSure={isSure} />)}
        {hasKnee && !isSure && runnerUp && isInside(runnerUp) && <KneeMark option={runnerUp} x={x(runnerUp.time)} y={y(runnerUp.cost)} isSure={false} />}
        {isActualShown && (
          <ActualMark x={x(actual.seconds)} y={y(actual.cost)} seconds={actual.seconds} cost={actual.cost} />
        )}
        <g aria-hidden="true">
          {ends.map((end) => (
            <text key={end.batch} className={css.batchLabel} x={end.labelX} y={end.y + 4} data-role="batch-label" data-batch={end.batch}>
              B={end.batch}
            </text>
          ))}
          {labels.map((label) => {
            const end = leaderEnd(label);
            return (
              <g key={label.id} className={css.label} data-role="label" data-config={label.id}>
                <line x1={label.x} y1={label.y} x2={end.x} y2={end.y} />
                <rect x={label.box.left} y={label.box.top} width={label.box.width} height={label.box.height} />
                {label.lines.map((line, index) => (
                  <text key={line} x={label.box.left + 5} y={label.box.top + 14 + index * 15}>
                    {line}
                  </text>
                ))}
              </g>
            );
          })}
        </g>
      </svg>
      {hovered && hovered.id !== selected && <Tip option={hovered} curve={curve} x={x(hovered.time)} y={y(hovered.cost)} width={width} height={height} isExcluded={excluded.has(hovered.id)} />}
      <Legend shown={shown} />
      {outside > 0 && !props.isWhole && <figcaption className={css.caption}>{describeOutside(outside, select !== undefined)}</figcaption>}
    </figure>
  );
}

function describeOutside(count: number, canShow: boolean): string {
  const start = count === 1 ? "1 option lies" : `${count} options lie`;
  return `${start} outside the part that is shown${canShow ? "; the table has all" : ""}.`;
}

type PixelScale = ReturnType<typeof scaleLinear<number>> | ReturnType<typeof scaleLog<number>>;

function Axes(props: {
  x: PixelScale;
  y: PixelScale;
  plot: { left: number; top: number; width: number; height: number };
  curve: Curve;
  isNarrow: boolean;
  time: [number, number];
  cost: [number, number];
  axes: AxisKind;
}) {
  const { x, y, plot, curve, time, cost } = props;
  const isRelative = curve.basis === "relative";
  const perTick = props.isNarrow ? 70 : 95;
  const [columns, rows] = [plot.width / perTick, plot.height / 52];
  const isLog = props.axes === "log";
  const times = isLog ? logTicks(time, columns, !isRelative) : isRelative ? valueTicks(time, columns) : timeTicks(time, columns);
  const costs = isLog ? logTicks(cost, rows, false) : valueTicks(cost, rows);
  const unit = isRelative ? ", × that of the start" : curve.basis === "remaining" ? ", of what is left" : "";
  return (
    <>
      <g className={css.grid}>
        {costs.map((value) => (
          <line key={value} x1={plot.left} x2={plot.left + plot.width} y1={y(value)} y2={y(value)} />
        ))}
      </g>
      <AxisBottom
        axisClassName={css.axis ?? ""}
        top={plot.top + plot.height}
        scale={x}
        tickValues={times}
        tickFormat={(value) => (isRelative ? `×${String(value)}` : formatTick(Number(value), time))}
        tickLabelProps={{ fontSize: 12, fill: "var(--muted)" }}
        hideTicks={false}
        label={`time to target${unit}`}
        labelProps={{ fontSize: 12, fill: "var(--muted)", textAnchor: "middle" }}
        labelOffset={10}
      />
      <AxisLeft
        axisClassName={css.axis ?? ""}
        left={plot.left}
        scale={y}
        tickValues={costs}
        tickFormat={(value) => formatCostTick(Number(value), costs, isRelative)}
        tickLabelProps={{ fontSize: 12, fill: "var(--muted)", dx: -4 }}
        label={props.isNarrow ? "" : `cost to target${isRelative ? unit : " (USD)"}`}
        labelProps={{ fontSize: 12, fill: "var(--muted)", textAnchor: "middle" }}
        labelOffset={54}
      />
    </>
  );
}

/** Writes a tick of the cost axis with as many digits as its neighbours need. */
export function formatCostTick(value: number, all: readonly number[], isRelative: boolean): string {
  const step = all.length > 1 ? (all[1] ?? 0) - (all[0] ?? 0) : value || 1;
  const digits = Math.max(isRelative ? 0 : step < 1 ? 2 : 0, -Math.floor(Math.log10(Math.abs(step) || 1) + 1e-9));
  return `${isRelative ? "×" : "$"}${value.toFixed(Math.min(digits, 9))}`;
}

function Tip(props: { option: Option; curve: Curve; x: number; y: number; width: number; height: number; isExcluded: boolean }) {
  const { option, curve, x, y, width, height } = props;
  const basis = curve.basis;
  const aside = x > width / 2 ? { right: width - x + 16 } : { left: x + 16 };
  // From the top of the figure, so that the legend's height does not matter.
  const place = { ...aside, top: y + 14, transform: y > height / 2 ? "translateY(calc(-100% - 28px))" : undefined };
  const { meets, violations } = option.point;
  return (
    <div className={css.tip} style={place} role="presentation">
      <strong>
        {option.name}
      </strong>{" "}
      {option.source}
      <br />
      {formatTime(option.time, basis)} ({formatTime(option.timeLow, basis)}–{formatTime(option.timeHigh, basis)})
      <br />
      {formatCost(option.cost, basis)} ({formatCost(option.costLow, basis)}–{formatCost(option.costHigh, basis)})
      {meets.max_cost !== null && <div>meets max_cost: {formatPercent(meets.max_cost)}</div>}
      {meets.max_time !== null && <div>meets max_time: {formatPercent(meets.max_time)}</div>}
      {props.isExcluded && violations.map((each) => <div key={each}>✕ {each}</div>)}
      {option.point.dominated_by && <div>worse than {nameOf(option.point.dominated_by)}</div>}
    </div>
  );
}

export const nameOf = (id: string) =>
  id.replace(/^k(\d+)-b(\d+)(?:-(.+))?$/, (_, workers, batch, stack) => `K=${workers} B=${batch}${stack ? ` ${longStack(stack)}` : ""}`);

/** The stack of a point's name: a layout, or a sum of parts. */
const longStack = (short: string) => (short.startsWith("P=") ? short.replaceAll("_", " ") : short.replaceAll(".", "+"));

function tagsOf(option: Option, curve: Curve, pinned: string | null): string {
  const tags = [
    curve.knee_bends && configId(curve.knee) === option.id ? "knee" : "",
    configId(curve.current) === option.id ? "running now" : "",
    configId(curve.chosen) === option.id ? "chosen" : "",
    pinned === option.id ? "pinned" : "",
  ].filter(Boolean);
  return tags.length ? `, ${tags.join(", ")}` : "";
}

function legendOf(
  options: readonly Option[],
  excluded: ReadonlySet<string>,
  has: { hasKnee: boolean; hasRunning: boolean; hasPinned: boolean; hasFront: boolean; hasActual: boolean; hasEarlier: boolean },
): Set<string> {
  const shown = new Set<string>(options.filter((option) => !excluded.has(option.id)).map((option) => option.source));
  if (excluded.size) shown.add("excluded by a limit");
  if (has.hasFront) shown.add("front, 80 % band");
  if (has.hasKnee) shown.add("knee");
  if (has.hasRunning) shown.add("running now");
  if (has.hasPinned) shown.add("pinned");
  if (has.hasActual) shown.add("what it took");
  if (has.hasEarlier) shown.add("earlier jobs");
  return shown;
}

/** Draws the way from the running option to the chosen one, bent away from the marks between them. */
function arcPath(x1: number, y1: number, x2: number, y2: number): string {
  const [dx, dy] = [x2 - x1, y2 - y1];
  return `M${x1},${y1}Q${x1 + dx / 2 + dy * 0.15},${y1 + dy / 2 - Math.abs(dx) * 0.15} ${x2},${y2}`;
}
