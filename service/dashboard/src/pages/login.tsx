import { useState, type FormEvent } from "react";
import { Unreachable, explain } from "../api/client";
import { signIn } from "../api/session";
import { Notice, Title } from "../parts/basics";
import parts from "../parts/parts.module.css";
import css from "./pages.module.css";

/** Asks for a token; `scavenger dashboard` needs none, since it opens a page with a one-time code. */
export function Login({ why }: { why: string }) {
  const [token, setToken] = useState("");
  const [refusal, setRefusal] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const send = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setRefusal(null);
    try {
      await signIn({ token: token.trim() });
    } catch (error) {
      setRefusal(error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main className={css.login}>
      <form className={parts.card} onSubmit={(event) => void send(event)}>
        <Title page="Sign in">Sign in to Scavenger</Title>
        {why && refusal === null && <Notice>{why}</Notice>}
        <label className={parts.field}>
          <span>Token</span>
          <input
            className={parts.input}
            type="password"
            autoComplete="off"
            spellCheck={false}
            placeholder="scv_…"
            value={token}
            required
            autoFocus
            aria-invalid={refusal !== null}
            onChange={(event) => setToken(event.target.value)}
          />
        </label>
        {refusal !== null && <Notice tone="bad">{refusal instanceof Unreachable ? "The controller does not answer: is scavenger serve running?" : explain(refusal)}</Notice>}
        <div className={parts.row}>
          <button type="submit" className={`${parts.button} ${parts.primary}`} disabled={isBusy || token.trim() === ""}>
            {isBusy ? "Asking…" : "Sign in"}
          </button>
        </div>
        <p className={`${parts.muted} ${parts.small}`}>
          On the controller's computer, <code>scavenger dashboard</code> signs in without a token. An admin makes one with <code>scavenger token create</code>.
        </p>
      </form>
    </main>
  );
}
