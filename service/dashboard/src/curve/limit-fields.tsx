import { useEffect, useState } from "react";
import { formatDollars, formatSeconds, pluralize } from "../parts/format";
import parts from "../parts/parts.module.css";
import { parseDollars, parseDuration } from "./duration";
import { LIMIT_WORDS } from "./limit";
import { countExcluded, type LimitName } from "./limits";
import type { Limits, Option } from "./options";
import css from "./page.module.css";

const WRITE = { maxCost: formatDollars, maxTime: formatSeconds };
const READ = { maxCost: parseDollars, maxTime: parseDuration };
const HINT = { maxCost: "such as 3.40", maxTime: "such as 3h12m" };

/** The limits of the whole job as text, for those who know the number. */
export function LimitFields({ whole, limits, options, change }: {
  whole: Limits;
  /** Where they lie on the curve: what is left of them, where the curve counts that. */
  limits: Limits;
  options: readonly Option[];
  change: (name: LimitName, value: number | null) => void;
}) {
  return (
    <div className={css.limits} role="group" aria-label="Limits">
      {(["maxCost", "maxTime"] as const).map((name) => (
        <LimitField key={name} name={name} value={whole[name]} left={limits[name]} change={change} excluded={countExcluded(options, limits, name)} count={options.length} />
      ))}
    </div>
  );
}

function LimitField({ name, value, left, change, excluded, count }: {
  name: LimitName;
  value: number | null;
  left: number | null;
  change: (name: LimitName, value: number | null) => void;
  excluded: number;
  count: number;
}) {
  const written = value === null ? "" : WRITE[name](value);
  const [text, setText] = useState(written);
  useEffect(() => setText(written), [written]);
  const read = text.trim() === "" ? null : READ[name](text);
  const isWrong = text.trim() !== "" && (read === null || read <= 0);
  const commit = () => {
    if (!isWrong && text !== written) change(name, read);
  };
  return (
    <label className={parts.field}>
      <span>
        {LIMIT_WORDS[name]}
        {value !== null && left !== value && `, ${WRITE[name](left ?? 0)} left`} · {value === null ? "no limit" : `excludes ${excluded} of ${pluralize(count, "option")}`}
      </span>
      <input
        className={parts.input}
        value={text}
        placeholder={`no limit; ${HINT[name]}`}
        aria-invalid={isWrong}
        data-field={name}
        inputMode={name === "maxCost" ? "decimal" : "text"}
        onChange={(event) => setText(event.target.value)}
        onBlur={commit}
        onKeyDown={(event) => {
          if (event.key === "Enter") commit();
          if (event.key === "Escape") setText(written);
        }}
      />
      {isWrong && <span role="alert">Not understood: write it {HINT[name]}.</span>}
    </label>
  );
}
