import parts from "../parts/parts.module.css";
import css from "./page.module.css";

/** Two or more ways to look at the same thing, of which one holds. */
export function Choices<Name extends string>({ label, names, chosen, choose }: { label: string; names: readonly Name[]; chosen: string; choose: (name: Name) => void }) {
  return (
    <div className={css.choices} role="group" aria-label={label}>
      <span className={parts.muted}>{label}</span>
      <span className={parts.toggles}>
        {names.map((name) => (
          <button key={name} type="button" className={parts.button} aria-pressed={name === chosen} onClick={() => choose(name)}>
            {name}
          </button>
        ))}
      </span>
    </div>
  );
}
