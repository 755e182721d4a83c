import { useState, type FormEvent } from "react";
import type { WhatIf } from "../api/orders";
import type { Job } from "../api/types";
import { CopyCommands, curl } from "../parts/commands";
import parts from "../parts/parts.module.css";
import css from "./page.module.css";

/** Asks how the curve would look with another price, other workers, another objective. */
export function WhatIfForm({ asked, ask, job }: { asked: WhatIf | null; ask: (asked: WhatIf | null) => void; job: Job }) {
  const [price, setPrice] = useState("");
  const [workers, setWorkers] = useState("");
  const [objective, setObjective] = useState("");
  const counts = workers.split(/[\s,]+/).filter(Boolean).map(Number);
  const isWrong = counts.some((count) => !Number.isInteger(count) || count < 1);
  const body: WhatIf = {
    ...(price.trim() ? { price: /^[\d.]+$/.test(price.trim()) ? `${price.trim()} USD/h` : price.trim() } : {}),
    ...(counts.length && !isWrong ? { workers: counts } : {}),
    ...(objective ? { objective } : {}),
  };
  const send = (event: FormEvent) => {
    event.preventDefault();
    if (!isWrong) ask(Object.keys(body).length ? body : null);
  };
  return (
    <details className={`${parts.card} ${css.why}`} data-section="what-if">
      <summary>What if</summary>
      <div className={parts.stack}>
        <form className={css.limits} onSubmit={send}>
          <label className={parts.field}>
            <span>price of a worker</span>
            <input className={parts.input} value={price} placeholder="such as 0.5 USD/h" onChange={(event) => setPrice(event.target.value)} />
          </label>
          <label className={parts.field}>
            <span>workers (K)</span>
            <input className={parts.input} value={workers} placeholder="such as 1, 2, 4" aria-invalid={isWrong} onChange={(event) => setWorkers(event.target.value)} />
          </label>
          <label className={parts.field}>
            <span>objective</span>
            <select className={parts.input} value={objective} onChange={(event) => setObjective(event.target.value)}>
              <option value="">the job&apos;s own</option>
              <option value="knee">knee</option>
              <option value="cheapest">cheapest</option>
              <option value="fastest">fastest</option>
            </select>
          </label>
          <div className={parts.row}>
            <button type="submit" className={`${parts.button} ${parts.primary}`} disabled={isWrong}>
              Show
            </button>
            {asked && (
              <button type="button" className={parts.button} onClick={() => ask(null)}>
                Back to what holds
              </button>
            )}
            <CopyCommands commands={{ api: curl("POST", `/v1/jobs/${job.id}/curve/whatif`, body) }} />
          </div>
        </form>
        <p className={`${parts.muted} ${parts.small}`}>Nothing is stored, and the job does not notice. Limits are tried by moving their lines.</p>
      </div>
    </details>
  );
}
