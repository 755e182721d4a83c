import type { components } from "./schema";

// The API's views by the names that pages use. schema.ts is made of docs/openapi.json.

type Views = components["schemas"];

// A field with a default may be left out of a request; an answer holds every field.
type Answered<T> = T extends (infer Item)[] ? Answered<Item>[] : T extends object ? { [Name in keyof T]-?: Answered<T[Name]> } : T;

export type Phase = Views["JobPhase"];
export type Money = Answered<Views["MoneyView"]>;
export type Config = Answered<Views["ConfigView"]>;
export type Job = Omit<Answered<Views["JobView"]>, "spec"> & { spec: JobSpec };

// The parts of a job's document that pages read.
export interface JobSpec {
  level?: string;
  target?: { metric?: string; at_batch?: number | null };
  limits?: { max_cost?: unknown; max_time?: unknown; memory?: MemoryLimit | null };
  lr_scaling?: string | { rule: string };
  [field: string]: unknown;
}

export interface MemoryLimit {
  machine_gib: number;
  fixed_gib: number;
  gib_per_sample: number;
}

export type Point = Answered<Views["PointView"]>;
export type Probe = Answered<Views["ProbeView"]>;
export type Resize = Answered<Views["ResizeView"]>;
export type Laws = Answered<Views["LawsView"]>;
export type Curve = Answered<Views["CurveView"]>;
export type Decision = Answered<Views["DecisionView"]>;
export type Event = Answered<Views["EventView"]>;
export type Order = Answered<Views["OrderView"]>;
export type Session = Answered<Views["SessionView"]>;
export type Series = Answered<Views["SeriesView"]>;
export type Telemetry = Answered<Views["TelemetryView"]>;
export type Machine = Answered<Views["MachineView"]>;
export type StoredModel = Answered<Views["StoredModelView"]>;
export type Forecast = Answered<Views["ForecastView"]>;
export type ModelDetail = Answered<Views["ModelDetailView"]>;
export type LogLine = Answered<Views["LogLineView"]>;
export type LogPage = Answered<Views["LogList"]>;
export type CostReport = Answered<Views["CostReportView"]>;
export type Plan = Answered<Views["PlanView"]>;
export type Token = Answered<Views["TokenView"]> & { token?: string };
export type AuditEntry = Answered<Views["AuditEntryView"]>;
export type Webhook = Answered<Views["WebhookView"]>;
export type Delivery = Answered<Views["DeliveryView"]>;
export type Sweep = Answered<Views["SweepView"]>;
export type Diagnostics = Answered<Views["DiagnosticsView"]>;
export type ProblemBody = Answered<Views["ProblemView"]>;
