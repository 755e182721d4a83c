import type { ProblemBody } from "./types";

// The one place that sends requests. A session cookie signs them in; a request that changes
// the controller's state carries the session's CSRF value and an idempotency key.

export class Problem extends Error {
  readonly body: ProblemBody;

  constructor(body: ProblemBody) {
    super(body.detail || body.title);
    this.body = body;
  }
}

export class Unreachable extends Error {}

export interface Answer<T> {
  data: T;
  etag: string | null;
}

type Method = "GET" | "POST" | "PATCH" | "DELETE";

interface Request {
  body?: unknown;
  text?: { content: string; type: string };
  ifMatch?: string | null;
  key?: string;
}

let csrf = "";
let whenSignedOut: () => void = () => undefined;
let whenReached: (isReached: boolean) => void = () => undefined;

export function setCsrf(value: string): void {
  csrf = value;
}

/** Names what to do when the session has ended, and when the controller is lost or found again. */
export function observeRequests(signedOut: () => void, reached: (isReached: boolean) => void): void {
  whenSignedOut = signedOut;
  whenReached = reached;
}

// `crypto.randomUUID` exists on https and localhost only; a controller may be neither.
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// The last answer of each address with its version: what has not changed is not sent again.
const seen = new Map<string, Answer<unknown>>();

export async function get<T>(path: string, signal?: AbortSignal): Promise<Answer<T>> {
  const known = seen.get(path);
  const headers: Record<string, string> = known?.etag ? { "If-None-Match": known.etag } : {};
  const response = await send("GET", path, headers, undefined, signal);
  if (response.status === 304 && known) return known as Answer<T>;
  const answer = { data: (await response.json()) as T, etag: response.headers.get("ETag") };
  if (answer.etag) seen.set(path, answer);
  return answer;
}

export async function change<T>(
  method: Exclude<Method, "GET">,
  path: string,
  request: Request = {},
): Promise<T> {
  const headers: Record<string, string> = { "X-CSRF": csrf };
  if (method === "POST") headers["Idempotency-Key"] = request.key ?? newKey();
  if (request.ifMatch) headers["If-Match"] = request.ifMatch;
  let body: string | undefined;
  if (request.text) {
    headers["Content-Type"] = request.text.type;
    body = request.text.content;
  } else if (request.body !== undefined) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(request.body);
  }
  const response = await send(method, path, headers, body);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

async function send(
  method: Method,
  path: string,
  headers: Record<string, string>,
  body?: string,
  signal?: AbortSignal,
): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      headers: { Accept: "application/json", ...headers },
      ...(body === undefined ? {} : { body }),
      ...(signal ? { signal } : {}),
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    whenReached(false);
    throw new Unreachable("the controller does not answer");
  }
  whenReached(true);
  if (response.ok || response.status === 304) return response;
  const problem = new Problem(await readProblem(response));
  // The sign-in itself answers 401 to a wrong token: that form says so.
  if (response.status === 401 && !(method === "POST" && path === "/v1/session")) whenSignedOut();
  throw problem;
}

async function readProblem(response: Response): Promise<ProblemBody> {
  try {
    return (await response.json()) as ProblemBody;
  } catch {
    const title = `the controller answered ${response.status}`;
    return { type: "", title, status: response.status, detail: title, code: "unknown", errors: [], request_id: null, current: null };
  }
}

/** Says why a request failed, with each field that is wrong. */
export function explain(error: unknown): string {
  if (error instanceof Problem) {
    const { title, detail, errors = [] } = error.body;
    const said = detail || title;
    return [said, ...errors.filter((each) => !said.includes(each.message)).map((each) => `${each.pointer}: ${each.message}`)].join("\n");
  }
  return error instanceof Error ? error.message : String(error);
}
