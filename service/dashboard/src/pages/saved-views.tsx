import { Popover } from "@base-ui/react/popover";
import { useState, type FormEvent } from "react";
import { Link } from "wouter";
import { Command } from "../parts/commands";
import parts from "../parts/parts.module.css";
import { deleteView, saveView, useViews } from "../parts/views";
import css from "./pages.module.css";

/** Names the filters of the list for later, and goes back to those that have a name. */
export function SavedViews({ query }: { query: string }) {
  const views = useViews();
  const [name, setName] = useState("");
  const [isOpen, setOpen] = useState(false);
  const save = (event: FormEvent) => {
    event.preventDefault();
    saveView({ name: name.trim(), query });
    setName("");
  };
  const shown = views.find((view) => view.query === query);
  return (
    <Popover.Root open={isOpen} onOpenChange={setOpen}>
      <Popover.Trigger className={parts.button}>{shown ? `View: ${shown.name}` : "Views"}</Popover.Trigger>
      <Popover.Portal>
        <Popover.Positioner sideOffset={6} align="end" collisionPadding={8}>
          <Popover.Popup className={parts.popup}>
            <Popover.Title render={<h2 />}>Saved views</Popover.Title>
            {views.length === 0 && <p className={`${parts.muted} ${parts.small}`}>None yet: set filters, then save them here under a name.</p>}
            {views.length > 0 && (
              <ul className={css.views}>
                {views.map((view) => (
                  <li key={view.name}>
                    <Link href={view.query ? `/jobs?${view.query}` : "/jobs"} aria-current={view.query === query ? "true" : undefined} onClick={() => setOpen(false)}>
                      {view.name}
                    </Link>
                    <button type="button" className={parts.button} aria-label={`Delete the view ${view.name}`} onClick={() => deleteView(view.name)}>
                      Delete
                    </button>
                  </li>
                ))}
              </ul>
            )}
            <form className={parts.row} onSubmit={save}>
              <label className={parts.field}>
                <span>Save what is shown as</span>
                <input className={parts.input} value={name} required maxLength={60} onChange={(event) => setName(event.target.value)} />
              </label>
              <button type="submit" className={parts.button} disabled={name.trim() === ""}>
                Save
              </button>
            </form>
            <Command title="Link" text={`${window.location.origin}/jobs${query ? `?${query}` : ""}`} />
            <p className={`${parts.muted} ${parts.small}`}>Names stay in this browser. The link shows the same list to every person who may see its jobs.</p>
          </Popover.Popup>
        </Popover.Positioner>
      </Popover.Portal>
    </Popover.Root>
  );
}
