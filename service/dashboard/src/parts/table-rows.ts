import type { ReactNode } from "react";

// What a table does with its rows: order them, and write them into a file.

export interface Column<Row> {
  name: string;
  head?: ReactNode;
  cell: (row: Row) => ReactNode;
  /** What rows are sorted by and what CSV files hold; a column without it has neither. */
  value?: (row: Row) => string | number | null;
  isNumber?: boolean;
  isWide?: boolean;
}

export function sortRows<Row>(
  rows: readonly Row[],
  columns: readonly Column<Row>[],
  order: { column: string; isDescending: boolean } | null,
): readonly Row[] {
  const value = columns.find((column) => column.name === order?.column)?.value;
  if (!order || !value) return rows;
  const sign = order.isDescending ? -1 : 1;
  // What has no value comes last, in either order.
  return rows.toSorted((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === null || b === null) return (a === null ? 1 : 0) - (b === null ? 1 : 0);
    return a < b ? -sign : a > b ? sign : 0;
  });
}

export function toCsv<Row>(rows: readonly Row[], columns: readonly Column<Row>[]): string {
  const kept = columns.filter((column) => column.value);
  const lines = [kept.map((column) => quote(column.name)), ...rows.map((row) => kept.map((column) => quote(column.value?.(row) ?? "")))];
  return lines.map((line) => line.join(",")).join("\r\n") + "\r\n";
}

function quote(value: string | number): string {
  const text = String(value);
  // A spreadsheet would run a text that begins like a formula.
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function saveFile(name: string, content: string, type: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
