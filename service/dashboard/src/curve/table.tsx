import { memo, useMemo } from "react";
import type { Curve } from "../api/types";
import { UNKNOWN, formatCost, formatDollars, formatNumber, formatPercent, formatSeconds, formatTime, toNumber } from "../parts/format";
import parts from "../parts/parts.module.css";
import { DataTable, type Column } from "../parts/table";
import { nameOf } from "./chart";
import { configId, type Option } from "./options";

/** Everything the chart shows, in words and numbers. */
export const OptionTable = memo(function OptionTable({ curve, options, excluded, selected, select, name, pinned = null, isOpen = true, toggle }: {
  curve: Curve;
  options: readonly Option[];
  excluded: ReadonlySet<string>;
  selected: string | null;
  select: (id: string) => void;
  name: string;
  pinned?: string | null;
  isOpen?: boolean;
  toggle?: () => void;
}) {
  const columns = useMemo(() => columnsOf(curve, excluded, selected, select, pinned), [curve, excluded, selected, select, pinned]);
  const rows = useMemo(() => options.toSorted((one, other) => one.time - other.time || one.cost - other.cost), [options]);
  return (
    <section className={parts.stack} style={{ gap: "0.4rem" }} aria-label="Options as a table" data-twin="">
      <div className={parts.row}>
        <h2>All options</h2>
        {toggle && (
          <button type="button" className={`${parts.button} ${parts.quiet}`} aria-expanded={isOpen} aria-keyshortcuts="T" onClick={toggle}>
            {isOpen ? "Hide the table" : "Show the table"} (T)
          </button>
        )}
      </div>
      {isOpen && (
        <DataTable
          label="Options"
          rows={rows}
          columns={columns}
          rowKey={(option) => option.id}
          selected={selected}
          onSelect={(option) => select(option.id)}
          csv={`${name}-curve.csv`}
          rowData={(option) => ({ "data-config": option.id, "data-x": option.time, "data-y": option.cost })}
        />
      )}
    </section>
  );
});

function columnsOf(curve: Curve, excluded: ReadonlySet<string>, selected: string | null, select: (id: string) => void, pinned: string | null): Column<Option>[] {
  const basis = curve.basis;
  const range = (low: string, high: string) => (low === high ? "" : ` (${low}–${high})`);
  return [
    {
      name: "option",
      value: (o) => o.name,
      cell: (o) => (
        <button type="button" className={`${parts.button} ${parts.quiet}`} style={{ minHeight: 24, padding: "0 0.2rem" }} aria-pressed={o.id === selected} onClick={() => select(o.id)}>
          {o.name}
        </button>
      ),
    },
    { name: "role", value: (o) => rolesOf(o, curve, excluded, pinned), cell: (o) => rolesOf(o, curve, excluded, pinned) },
    { name: "workers", head: "K", value: (o) => o.workers, cell: (o) => o.workers, isNumber: true },
    { name: "global_batch", head: "B", value: (o) => o.batch, cell: (o) => o.batch, isNumber: true },
    { name: "time", value: (o) => o.time, cell: (o) => formatTime(o.time, basis) + range(formatTime(o.timeLow, basis), formatTime(o.timeHigh, basis)), isNumber: true },
    { name: "cost", value: (o) => toNumber(o.point.cost), cell: (o) => formatCost(o.cost, basis) + range(formatCost(o.costLow, basis), formatCost(o.costHigh, basis)), isNumber: true },
    { name: "figures", value: (o) => o.source, cell: (o) => o.source },
    { name: "meets_max_cost", head: "meets max_cost", value: (o) => o.point.meets.max_cost, cell: (o) => formatPercent(o.point.meets.max_cost), isNumber: true },
    { name: "meets_max_time", head: "meets max_time", value: (o) => o.point.meets.max_time, cell: (o) => formatPercent(o.point.meets.max_time), isNumber: true },
    { name: "step_time", head: "τ", value: (o) => o.point.step_time, cell: (o) => formatSeconds(o.point.step_time), isNumber: true },
    { name: "noise", head: "γ", value: (o) => o.point.noise, cell: (o) => formatNumber(o.point.noise), isNumber: true },
    { name: "epochs", value: (o) => o.point.epochs, cell: (o) => formatNumber(o.point.epochs), isNumber: true },
    { name: "price_of_hour_saved", head: "$ per hour saved", value: (o) => toNumber(o.point.marginal_price), cell: (o) => (o.point.marginal_price === null ? UNKNOWN : formatDollars(o.point.marginal_price)), isNumber: true },
    { name: "worse_than", head: "worse than", value: (o) => o.point.dominated_by, cell: (o) => (o.point.dominated_by ? nameOf(o.point.dominated_by) : "") },
    { name: "over_limits", head: "over limits", value: (o) => o.point.violations.join("; "), cell: (o) => (excluded.has(o.id) ? o.point.violations.join("; ") || "over the limit as it is moved" : "") },
  ];
}

function rolesOf(option: Option, curve: Curve, excluded: ReadonlySet<string>, pinned: string | null): string {
  const marks = [
    excluded.has(option.id) ? "✕ excluded" : option.point.on_front ? "front" : "",
    curve.knee_bends && configId(curve.knee) === option.id ? "★ knee" : "",
    configId(curve.current) === option.id ? "▣ running" : "",
    pinned === option.id ? "⚑ pinned" : "",
    configId(curve.chosen) === option.id ? "chosen" : "",
    configId(curve.fastest) === option.id ? "fastest" : "",
    configId(curve.cheapest) === option.id ? "cheapest" : "",
    configId(curve.start) === option.id ? "start" : "",
  ];
  return marks.filter(Boolean).join(", ");
}
