import { useMemo } from "react";
import type { Event, Job, Probe, Resize } from "../api/types";
import { Moment } from "../parts/basics";
import { useNow } from "../parts/clock";
import { formatConfig, formatMoment, formatSeconds } from "../parts/format";
import parts from "../parts/parts.module.css";
import { usePreferences } from "../parts/preferences";
import { useSize } from "../parts/size";
import { legendOf, signOf, signedEvents } from "./signs";
import css from "./pages.module.css";

interface Props {
  job: Job;
  events: readonly Event[];
  resizes: readonly Resize[];
  probes: readonly Probe[];
}

interface Track {
  name: string;
  steps: { at: number; value: number }[];
}

const LANE = 54;
const LEFT = 34;

/** K and B over time, as steps, with events below them; the list beside it says the same in words. */
export function StripTimeline({ job, events, resizes, probes }: Props) {
  const [frame, { width }] = useSize<HTMLDivElement>();
  const now = useNow();
  const { isUtc } = usePreferences();
  const begin = new Date(job.created_at).getTime();
  const end = Math.max(job.finished_at ? new Date(job.finished_at).getTime() : now, begin + 1000);
  const tracks = useMemo(() => tracksOf(resizes, begin), [resizes, begin]);
  const right = Math.max(width, 260) - 40;
  const x = (at: number) => LEFT + ((at - begin) / (end - begin)) * (right - LEFT);
  const last = events.slice(-6).toReversed();
  const signs = signedEvents(events, x);
  return (
    <div ref={frame} className={parts.stack} style={{ gap: "0.6rem" }}>
      {tracks.some((track) => track.steps.length > 0) && (
        <svg className={css.strip} width="100%" height={LANE * 2 + 42} role="img" aria-label={describe(resizes, probes)}>
          {tracks.map((track, lane) => {
            const top = 10 + lane * LANE;
            const most = Math.max(...track.steps.map((step) => step.value), 1);
            const y = (value: number) => top + LANE - 14 - (value / most) * (LANE - 26);
            return (
              <g key={track.name} data-track={track.name}>
                <line className={css.base} x1={LEFT} x2={right} y1={top + LANE - 14} y2={top + LANE - 14} />
                <text x={2} y={top + LANE - 20}>
                  {track.name}
                </text>
                <path className={`${css.track} ${lane ? css.second : ""}`} d={trackPath(track.steps, x, y, right)} />
                {labelledSteps(track.steps, x).map((step) => (
                  <text key={step.at} x={x(step.at) + 2} y={y(step.value) - 4}>
                    {step.value}
                  </text>
                ))}
              </g>
            );
          })}
          {signs.map((event) => (
            <text key={event.sequence} x={x(new Date(event.at).getTime())} y={LANE * 2 + 14} textAnchor="middle" data-event={event.kind}>
              {signOf(event)?.sign}
              <title>{`${formatMoment(event.at, isUtc, now)} ${event.message}`}</title>
            </text>
          ))}
          <text x={LEFT} y={LANE * 2 + 34}>
            {formatMoment(begin, isUtc, now)}
          </text>
          <text x={right} y={LANE * 2 + 34} textAnchor="end">
            +{formatSeconds((end - begin) / 1000)}
          </text>
        </svg>
      )}
      {signs.length > 0 && (
        <p className={`${parts.muted} ${parts.small}`} data-legend="timeline">
          {legendOf(signs).join(" · ")}
        </p>
      )}
      <ul className={parts.small} aria-label="Newest events">
        {last.map((event) => (
          <li key={event.sequence}>
            <Moment at={event.at} /> <strong>{event.kind}</strong> {event.message}
          </li>
        ))}
      </ul>
    </div>
  );
}

function tracksOf(resizes: readonly Resize[], begin: number): Track[] {
  const first = resizes[0]?.before;
  const initial = first ? [{ at: begin, config: first }] : [];
  const steps = [...initial, ...resizes.map((resize) => ({ at: new Date(resize.at).getTime(), config: resize.after }))];
  return [
    { name: "K", steps: steps.map(({ at, config }) => ({ at, value: config.workers })) },
    { name: "B", steps: steps.map(({ at, config }) => ({ at, value: config.global_batch })) },
  ];
}

export function trackPath(steps: readonly { at: number; value: number }[], x: (at: number) => number, y: (value: number) => number, right: number): string {
  const [first, ...rest] = steps;
  if (!first) return "";
  return `M${x(first.at)},${y(first.value)}${rest.map((step) => `H${x(step.at)}V${y(step.value)}`).join("")}H${right}`;
}

const LABEL_WIDTH = 26;

/** Keeps the steps whose labels do not overlap; the step that lasts longest has its label first. */
function labelledSteps(steps: readonly { at: number; value: number }[], x: (at: number) => number) {
  const changes = steps.filter((step, index) => index === 0 || steps[index - 1]?.value !== step.value);
  const last = (index: number) => (changes[index + 1]?.at ?? Number.POSITIVE_INFINITY) - (changes[index]?.at ?? 0);
  const kept: typeof changes = [];
  for (const [index] of [...changes.entries()].toSorted(([one], [other]) => last(other) - last(one))) {
    const step = changes[index];
    if (step && kept.every((each) => Math.abs(x(each.at) - x(step.at)) >= LABEL_WIDTH)) kept.push(step);
  }
  return kept;
}

function describe(resizes: readonly Resize[], probes: readonly Probe[]): string {
  const last = resizes[resizes.length - 1];
  return `${probes.length} probes and ${resizes.length} resizes; the last one to ${formatConfig(last?.after)}.`;
}
