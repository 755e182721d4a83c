import { change } from "./client";
import { refreshJob } from "./queries";
import type { Config, Curve, Order } from "./types";

// What a person asks of a job. Each request names the version of the job that was on the screen, so
// that the controller refuses it when something else was decided meanwhile.

export type Target = "auto" | "knee" | "cheapest" | "fastest" | Config;

async function order(job: string, method: "POST" | "PATCH", path: string, body: unknown, ifMatch: string | null): Promise<Order> {
  try {
    return await change<Order>(method, `/v1/jobs/${job}${path}`, { body, ifMatch });
  } finally {
    void refreshJob(job);
  }
}

export const resize = (job: string, to: Target, ifMatch: string | null) =>
  order(job, "POST", "/actions/resize", { to, reason: "chosen on the dashboard" }, ifMatch);
export const probe = (job: string, config: Config, ifMatch: string | null) =>
  order(job, "POST", "/actions/probe", config, ifMatch);
export const pause = (job: string, ifMatch: string | null) => order(job, "POST", "/actions/pause", {}, ifMatch);
export const resume = (job: string, ifMatch: string | null) => order(job, "POST", "/actions/resume", {}, ifMatch);
export const cancel = (job: string, ifMatch: string | null) => order(job, "POST", "/actions/cancel", undefined, ifMatch);
export const changeJob = (job: string, body: JobChange, ifMatch: string | null) => order(job, "PATCH", "", body, ifMatch);

export interface JobChange {
  limits?: { max_cost?: string | null; max_time?: string | null };
  objective?: unknown;
}

export interface WhatIf {
  price?: string;
  workers?: number[];
  limits?: JobChange["limits"];
  objective?: unknown;
}

/** Asks how the curve would look; nothing is stored. */
export const whatIf = (job: string, body: WhatIf, basis: string) => change<Curve>("POST", `/v1/jobs/${job}/curve/whatif?basis=${basis}`, { body });

export function describeTarget(to: Target): string {
  return typeof to === "string" ? to : `${to.workers},${to.global_batch}`;
}
