import { useEffect, useRef, type ReactNode } from "react";
import type { UseQueryResult } from "@tanstack/react-query";
import { explain } from "../api/client";
import type { Answer } from "../api/client";
import type { Money as MoneyValue, Phase } from "../api/types";
import { useNow } from "./clock";
import { UNKNOWN, formatAge, formatMoment, formatMoney } from "./format";
import { usePreferences } from "./preferences";
import css from "./parts.module.css";

export type Tone = "plain" | "good" | "warning" | "bad";

export function Notice({ tone = "plain", children }: { tone?: Tone; children: ReactNode }) {
  return (
    <div className={css.notice} data-tone={tone} role={tone === "bad" ? "alert" : "status"}>
      {children}
    </div>
  );
}

export function Chip({ tone = "plain", children, ...rest }: { tone?: Tone; children: ReactNode; title?: string }) {
  return (
    <span className={css.chip} data-tone={tone} {...rest}>
      {children}
    </span>
  );
}

// Each phase has a sign of its own, so that colour is not needed to tell them apart.
const PHASES: Record<Phase, [sign: string, tone: Tone]> = {
  pending: ["○", "plain"],
  starting: ["◔", "plain"],
  probing: ["◐", "plain"],
  training: ["▶", "good"],
  succeeded: ["✔", "good"],
  failed: ["✖", "bad"],
  cancelled: ["■", "plain"],
  capped: ["⊘", "warning"],
};

export const PHASE_NAMES = Object.keys(PHASES) as Phase[];
export const isFinal = (phase: Phase) => ["succeeded", "failed", "cancelled", "capped"].includes(phase);

export function PhaseChip({ phase, isPaused = false }: { phase: Phase; isPaused?: boolean }) {
  const [sign, tone] = PHASES[phase] ?? ["?", "plain"];
  if (isPaused && !isFinal(phase)) return <Chip tone="warning">⏸ paused</Chip>;
  return (
    <Chip tone={tone}>
      <span aria-hidden="true">{sign}</span>
      {phase}
    </Chip>
  );
}

/** Shows an amount, with its exact digits for copying and for tests. */
export function Money({ value }: { value: MoneyValue | null | undefined }) {
  if (!value) return <span className={css.number}>{formatMoney(value)}</span>;
  return (
    <data className={css.number} value={value.amount} title={`${value.amount} ${value.currency}`}>
      {formatMoney(value)}
    </data>
  );
}

export function Moment({ at, isAge = false }: { at: string | null | undefined; isAge?: boolean }) {
  const now = useNow();
  const { isUtc } = usePreferences();
  if (!at) return <span>{UNKNOWN}</span>;
  return (
    <time dateTime={at} title={at} className={css.number}>
      {isAge ? formatAge(at, now) : formatMoment(at, isUtc, now)}
    </time>
  );
}

/** Sets a custom property without a style attribute, which the content policy refuses. */
export function useProperty<T extends HTMLElement>(name: string, value: string) {
  const element = useRef<T>(null);
  useEffect(() => element.current?.style.setProperty(name, value), [name, value]);
  return element;
}

export function Bar({ share, label, tone = "plain" }: { share: number; label: string; tone?: Tone }) {
  const bounded = Math.min(Math.max(share, 0), 1);
  const fill = useProperty<HTMLSpanElement>("--share", String(bounded));
  return (
    <div
      className={css.bar}
      data-tone={tone}
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(100 * bounded)}
    >
      <span ref={fill} />
    </div>
  );
}

export function Facts({ facts }: { facts: [label: ReactNode, value: ReactNode][] }) {
  return (
    <dl className={css.facts}>
      {facts.map(([label, value], index) => (
        <div key={index} style={{ display: "contents" }}>
          <dt>{label}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Shows what a request answered; while it is unknown, a place for it; when it fails, why. */
export function Loaded<T>({ query, children }: { query: UseQueryResult<Answer<T>>; children: (data: T) => ReactNode }) {
  if (query.data) return children(query.data.data);
  if (query.isError) {
    return (
      <Notice tone="bad">
        {explain(query.error)}
        <button type="button" className={css.button} onClick={() => void query.refetch()}>
          Ask again
        </button>
      </Notice>
    );
  }
  return <div className={css.skeleton} role="status" aria-label="loading" />;
}

/** Stands for a list that is not there yet, or says why it could not be loaded. */
export function ListState({ list }: { list: { isPending: boolean; isError: boolean; error: unknown; refetch: () => unknown } }) {
  if (list.isError) {
    return (
      <Notice tone="bad">
        {explain(list.error)}
        <button type="button" className={css.button} onClick={() => void list.refetch()}>
          Ask again
        </button>
      </Notice>
    );
  }
  return list.isPending ? <div className={css.skeleton} role="status" aria-label="loading" /> : null;
}

export function Title({ children, page }: { children: ReactNode; page: string }) {
  useEffect(() => {
    document.title = `${page} · Scavenger`;
  }, [page]);
  return <h1>{children}</h1>;
}
