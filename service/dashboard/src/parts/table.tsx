import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef, useState, type ReactNode } from "react";
import { pluralize } from "./format";
import { saveFile, sortRows, toCsv, type Column } from "./table-rows";
import css from "./table.module.css";
import parts from "./parts.module.css";

export type { Column };

interface Props<Row> {
  label: string;
  rows: readonly Row[];
  columns: readonly Column<Row>[];
  rowKey: (row: Row) => string;
  selected?: string | null;
  onSelect?: (row: Row) => void;
  csv?: string;
  empty?: ReactNode;
  more?: ReactNode;
  rowData?: (row: Row) => Record<`data-${string}`, string | number>;
}

// Fewer rows than these are all in the document, where the browser's own search finds them.
const VIRTUAL_FROM = 120;
const ROW_HEIGHT = 38;

/** A table whose rows are sorted by any column and, when they are many, made as they are seen. */
export function DataTable<Row>(props: Props<Row>) {
  const { label, rows, columns, rowKey, selected = null, onSelect, csv, empty, more } = props;
  const [order, setOrder] = useState<{ column: string; isDescending: boolean } | null>(null);
  const sorted = useMemo(() => sortRows(rows, columns, order), [rows, columns, order]);
  const frame = useRef<HTMLDivElement>(null);
  const isVirtual = sorted.length > VIRTUAL_FROM;
  const virtual = useVirtualizer({
    count: isVirtual ? sorted.length : 0,
    // It would measure the table, which the browser then lays out before it is complete.
    enabled: isVirtual,
    getScrollElement: () => frame.current,
    estimateSize: () => ROW_HEIGHT,
    overscan: 12,
  });
  const window = virtual.getVirtualItems();
  const first = window[0];
  const last = window[window.length - 1];
  const shown = isVirtual ? window.map((item) => [item.index, sorted[item.index] as Row] as const) : [...sorted.entries()];
  if (rows.length === 0) return <>{empty ?? <p className={parts.muted}>None.</p>}</>;
  return (
    <div className={parts.stack} style={{ gap: "0.4rem" }}>
      <div className={css.frame} ref={frame} tabIndex={0} role="region" aria-label={label}>
        <table className={css.table} aria-rowcount={sorted.length + 1}>
          <caption className="hidden-text">{label}</caption>
          <thead>
            <tr aria-rowindex={1}>
              {columns.map((column) => (
                <Head key={column.name} column={column} order={order} setOrder={setOrder} />
              ))}
            </tr>
          </thead>
          <tbody>
            {first && <Gap height={first.start} columns={columns.length} />}
            {shown.map(([index, row]) => {
              const key = rowKey(row);
              return (
                <tr
                  key={key}
                  aria-rowindex={index + 2}
                  aria-selected={onSelect ? key === selected : undefined}
                  data-key={key}
                  {...props.rowData?.(row)}
                  onClick={onSelect ? () => onSelect(row) : undefined}
                >
                  {columns.map((column) => (
                    <td key={column.name} className={column.isNumber ? css.number : column.isWide ? css.wrap : undefined}>
                      {column.cell(row)}
                    </td>
                  ))}
                </tr>
              );
            })}
            {last && <Gap height={virtual.getTotalSize() - last.end} columns={columns.length} />}
          </tbody>
        </table>
      </div>
      <div className={css.foot}>
        <span>{pluralize(sorted.length, "row")}</span>
        {csv && (
          <button type="button" className={parts.button} onClick={() => saveFile(csv, toCsv(sorted, columns), "text/csv")}>
            CSV
          </button>
        )}
        {more}
      </div>
    </div>
  );
}

function Gap({ height, columns }: { height: number; columns: number }) {
  if (height <= 0) return null;
  return (
    <tr className={css.gap} aria-hidden="true">
      <td colSpan={columns} style={{ height }} />
    </tr>
  );
}

function Head<Row>({
  column,
  order,
  setOrder,
}: {
  column: Column<Row>;
  order: { column: string; isDescending: boolean } | null;
  setOrder: (order: { column: string; isDescending: boolean }) => void;
}) {
  const isSorted = order?.column === column.name;
  const direction = isSorted ? (order.isDescending ? "descending" : "ascending") : undefined;
  const sign = isSorted ? (order.isDescending ? " ↓" : " ↑") : "";
  return (
    <th scope="col" className={column.isNumber ? css.number : undefined} aria-sort={direction}>
      {column.value ? (
        <button
          type="button"
          className={css.sort}
          onClick={() => setOrder({ column: column.name, isDescending: isSorted && !order.isDescending })}
        >
          {column.head ?? column.name}
          <span aria-hidden="true">{sign}</span>
        </button>
      ) : (
        (column.head ?? column.name)
      )}
    </th>
  );
}
