import { useSyncExternalStore } from "react";
import { Problem, Unreachable, change, get, observeRequests, setCsrf } from "./client";
import { noteReached } from "./live";
import { queryClient } from "./queries";
import type { Session } from "./types";

// Who is signed in. The cookie is the controller's and no script reads it.

export type SignIn =
  | { state: "unknown" }
  | { state: "signed-out"; why: string }
  | { state: "signed-in"; session: Session };

const holdsCode = () => window.location.hash.startsWith("#code=");

let current: SignIn = { state: "unknown" };
const watchers = new Set<() => void>();

const WAS_SIGNED_IN = "scavenger.was-signed-in";

/** Tells whether this browser's cookie was good when it was last used, and no code in the address replaces it. */
export const expectsSession = () => localStorage.getItem(WAS_SIGNED_IN) !== null && !holdsCode();

function set(next: SignIn): void {
  current = next;
  const isSignedIn = next.state === "signed-in";
  setCsrf(isSignedIn ? next.session.csrf : "");
  if (isSignedIn) localStorage.setItem(WAS_SIGNED_IN, "yes");
  else localStorage.removeItem(WAS_SIGNED_IN);
  watchers.forEach((watcher) => watcher());
}

export function useSignIn(): SignIn {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => current,
  );
}

export function useSession(): Session {
  const signIn = useSignIn();
  if (signIn.state !== "signed-in") throw new Error("a page without a session");
  return signIn.session;
}

observeRequests(() => {
  if (current.state !== "signed-in") return;
  queryClient.clear();
  set({ state: "signed-out", why: "Your session has ended: its token was revoked, or it was idle. Sign in again." });
}, noteReached);

// A link with a code that is opened where a page of this controller stands changes only the fragment.
window.addEventListener("hashchange", () => {
  if (holdsCode()) void begin();
});

/** Takes a one-time code out of the address, if one is there, and asks who is signed in. */
export async function begin(): Promise<void> {
  const code = new URLSearchParams(window.location.hash.slice(1)).get("code");
  if (code) {
    // Before the code is used, so that no reload and no history holds it.
    window.history.replaceState(null, "", window.location.pathname + window.location.search);
    try {
      await signIn({ code });
      return;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      set({ state: "signed-out", why: "That link was used already or is older than a minute: run scavenger dashboard again." });
      return;
    }
  }
  try {
    set({ state: "signed-in", session: (await get<Session>("/v1/session")).data });
  } catch (error) {
    if (error instanceof Unreachable) window.setTimeout(() => void begin(), 2000);
    // What was asked ahead was refused, too.
    queryClient.clear();
    set({ state: "signed-out", why: error instanceof Unreachable ? "The controller does not answer; asking again." : "" });
  }
}

export async function signIn(credential: { token: string } | { code: string }): Promise<void> {
  set({ state: "signed-in", session: await change<Session>("POST", "/v1/session", { body: credential }) });
}

export async function signOut(): Promise<void> {
  await change("DELETE", "/v1/session");
  queryClient.clear();
  set({ state: "signed-out", why: "You are signed out." });
}
