// The views of the REST API, by the names that pages use. scavenger/schemas.py explains the fields.

export type Phase =
  | "pending"
  | "starting"
  | "probing"
  | "training"
  | "succeeded"
  | "failed"
  | "cancelled"
  | "capped";

export interface Money {
  amount: string;
  currency: string;
}

export interface Config {
  workers: number;
  global_batch: number;
}

export interface Job {
  id: string;
  name: string;
  project?: string;
  model_key: string;
  phase: Phase;
  reason: string;
  worker_exit_code: number | null;
  target: Config | null;
  applied: Config | null;
  generation: number;
  workers_alive: number;
  servers_alive: number;
  search: string;
  progress: {
    iteration: number;
    epochs: number;
    expected_epochs: number | null;
    max_epochs: number;
    metrics: Record<string, number>;
    diverged: string | null;
  };
  indicators: {
    noise: number | null;
    noise_scale: number | null;
    compute_time: number;
    sync_time: number;
    step_time: number;
  } | null;
  cost: {
    accrued: Money;
    search: Money;
    reserved?: Money;
    cap: Money | null;
    forecast: Money | null;
  };
  eta?: { p10: string; p50: string; p90: string } | null;
  elapsed: number;
  created_at: string;
  finished_at: string | null;
  advice: { config: Config | null; why: string } | null;
  checkpoints: string | null;
  diverged: boolean;
  preference?: "auto" | "knee" | "cheapest" | "fastest" | "pinned";
  pinned?: Config | null;
  is_paused?: boolean;
  open_orders?: number;
  spec: JobSpec;
}

// The parts of a job's document that pages read.
export interface JobSpec {
  objective?: unknown;
  level?: string;
  limits?: { max_cost?: unknown; max_time?: unknown };
  target?: Record<string, unknown>;
  machine?: { type?: string | null; cloud?: string | null };
  [field: string]: unknown;
}

export interface Point extends Config {
  id: string;
  noise: number | null;
  epochs: number;
  compute_time: number;
  sync_time: number;
  step_time: number;
  measured_step_time: number | null;
  time: number;
  time_low: number;
  time_high: number;
  cost: string;
  cost_low: string;
  cost_high: string;
  source: "measured" | "predicted" | "extrapolated";
  on_front: boolean;
  violations: string[];
  meets: { max_cost: number | null; max_time: number | null };
  parallel_efficiency: number | null;
  statistical_efficiency: number | null;
  marginal_price: string | null;
  dominated_by: string | null;
}

export interface Law {
  compute_fixed: number;
  compute_per_sample: number;
  flatness: number;
  sync_fixed: number;
  sync_per_worker: number;
  sync_across_machines: number;
  growth: string;
  overlap: number;
}

export interface Laws extends Law {
  spread: number | null;
  noise_scale: number | null;
  critical_batch: number | null;
  noisy_samples: number;
  law: string;
  mean_relative_error: number;
  averaged: (Law & { weight: number })[];
}

export interface Probe extends Config {
  noise: number | null;
  noise_scale: number | null;
  compute_time: number;
  sync_time: number;
  iterations: number;
  seconds: number;
  cost: number | string;
  settled_at: string;
}

export interface Resize {
  generation: number;
  before: Config | null;
  after: Config;
  pause: number | null;
  iterations_lost: number | null;
  why: string;
  at: string;
}

export interface Curve {
  basis: "total" | "remaining" | "relative";
  decision: number | null;
  decided_at: string | null;
  as_of?: string | null;
  limits: { max_cost: number | string | null; max_time: number | null } | null;
  objective: string;
  why: string;
  source: string;
  laws: Laws | null;
  points: Point[];
  front: Config[];
  knee: Config | null;
  fastest: Config | null;
  cheapest: Config | null;
  start: Config;
  current: Config | null;
  chosen: Config | null;
  support: number | null;
  runner_up: Config | null;
  probes: Probe[];
  resizes: Resize[];
  knee_bends: boolean;
  switch?: { seconds: number; cost: string } | null;
  calibration?: { coverage: number; forecasts: number } | null;
  is_finished?: boolean;
}

export interface Decision {
  number: number;
  at: string;
  why: string;
  chosen: Config | null;
  basis: string;
}

export interface Event {
  sequence: number;
  at: string;
  kind: string;
  message: string;
  data: Record<string, unknown>;
  job?: string;
}

export interface Order {
  number: number;
  job: string;
  kind: string;
  wish: unknown;
  reason: string;
  by: string;
  at: string;
  state: "open" | "done" | "refused" | "replaced";
  told: string;
  ended_at: string | null;
}

export interface Session {
  token: string;
  name: string;
  project: string;
  role: "viewer" | "submitter" | "operator" | "admin";
  csrf: string;
  expires_at: string | null;
}

export interface Series {
  name: string;
  unit: string;
  at: (string | number)[];
  low: (number | null)[];
  high: (number | null)[];
  nonfinite: number;
}

export interface Telemetry {
  from: string;
  to: string;
  series: Series[];
}

export interface LogLine {
  number: number;
  machine: string;
  role: string;
  at: string;
  text: string;
}

export interface Machine {
  id: string;
  job: string;
  project: string;
  role: string;
  state: string;
  cloud: string;
  zone: string;
  machine_type: string;
  market: string;
  price_per_hour: Money;
  prepaid_until: string | null;
  lease_age: number | null;
  launched_at: string | null;
  gone_at: string | null;
  why: string;
}

export interface StoredModel {
  model_key: string;
  signature: string;
  laws: Laws;
  reference_batch: number;
  epochs_to_target: Record<string, number>;
  jobs: number;
  updated_at: string;
}

export interface Forecast {
  job: string;
  name: string;
  phase: Phase;
  chosen: Config | null;
  due_from: string | null;
  due_until: string | null;
  finished_at: string | null;
  is_within: boolean | null;
  cost_low: Money | null;
  cost: Money | null;
  cost_high: Money | null;
  spent: Money;
}

export interface ModelDetail extends StoredModel {
  project: string;
  calibration: { coverage: number; forecasts: number } | null;
  forecasts: Forecast[];
}

export interface Delivery {
  number: number;
  kind: string | null;
  job: string | null;
  state: "waiting" | "delivered" | "failed";
  attempts: number;
  created_at: string;
  next_try_at: string | null;
  ended_at: string | null;
  status: number | null;
  told: string | null;
}

export interface CostReport {
  by: string;
  until: string;
  total: Money;
  entries: { key: string; name: string; cost: Money }[];
  not_included?: string[];
  next_cursor: string | null;
}

export interface Plan {
  id: string;
  created_at: string;
  expires_at: string;
  name: string;
  model_key: string;
  curve: Curve;
  choice: Config | null;
  why: string;
  search: { probes: number; seconds: number; cost: string } | null;
  cap: Money | string | null;
  checks: string[];
  prices_as_of: string | null;
  would_reuse: number;
}

export interface Token {
  id: string;
  name: string;
  project: string;
  role: string;
  created_at: string;
  created_by: string;
  expires_at: string | null;
  revoked_at: string | null;
  last_used_at: string | null;
  token?: string;
}

export interface AuditEntry {
  number: number;
  at: string;
  who: string;
  project: string;
  method: string;
  route: string;
  target: string | null;
  status: number;
  request_id: string;
}

export interface Webhook {
  id: string;
  url: string;
  kind: "generic" | "slack";
  events: string[];
  project: string;
  is_enabled: boolean;
  created_at: string;
  disabled_why: string | null;
  secret?: string | null;
}

export interface Sweep {
  number: number;
  cloud: string;
  at: string;
  shown: number;
  suspects: {
    machine: string;
    launch_key: string;
    job: string;
    fate: string;
    reason: string;
    since: string | null;
  }[];
  ended: number;
  tripped: string | null;
  confirmed_at: string | null;
}

export interface ProblemBody {
  type: string;
  title: string;
  status: number;
  detail: string;
  code: string;
  errors?: { pointer: string; message: string }[];
  request_id?: string | null;
  current?: { target?: Config | null; forecast?: Money | null } & Record<string, unknown>;
}
