import { Autocomplete } from "@base-ui/react/autocomplete";
import { Dialog } from "@base-ui/react/dialog";
import { useEffect, useMemo, useRef, useState } from "react";
import { useLocation } from "wouter";
import { useApi } from "./api/queries";
import type { Job } from "./api/types";
import { offeredActions, type Action } from "./parts/actions";
import { useProject } from "./parts/project";
import css from "./palette.module.css";

interface Group {
  name: string;
  items: Action[];
}

const TYPING_PAUSE = 150;
const MOST_JOBS = 8;

/** Finds pages, jobs and what can be done on the page, by typing; opened by Ctrl+K or its button. */
export default function Palette({ isOpen, setOpen, pages, settings }: {
  isOpen: boolean;
  setOpen: (isOpen: boolean) => void;
  pages: readonly (readonly [path: string, name: string])[];
  settings: readonly Action[];
}) {
  // Run once the palette is gone: a dialog that an action opens would lose the focus to it.
  const chosen = useRef<Action | null>(null);
  const finish = (open: boolean) => {
    if (open) return;
    chosen.current?.run();
    chosen.current = null;
  };
  const choose = (action: Action) => {
    chosen.current = action;
    setOpen(false);
  };
  return (
    <Dialog.Root open={isOpen} onOpenChange={setOpen} onOpenChangeComplete={finish}>
      <Dialog.Portal>
        <Dialog.Backdrop className={css.backdrop} />
        <Dialog.Popup className={css.popup} aria-label="Command palette">
          <Search choose={choose} pages={pages} settings={settings} />
        </Dialog.Popup>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

function Search({ choose, pages, settings }: {
  choose: (action: Action) => void;
  pages: readonly (readonly [path: string, name: string])[];
  settings: readonly Action[];
}) {
  const [text, setText] = useState("");
  const [, navigate] = useLocation();
  const jobs = useFoundJobs(text);
  const actions = useMemo(offeredActions, []);
  const wanted = text.trim().toLowerCase();
  const matching = (items: readonly Action[]) => items.filter((item) => item.name.toLowerCase().includes(wanted));
  const groups: Group[] = [
    { name: "This page", items: matching(actions) },
    { name: "Pages", items: matching(pages.map(([path, name]) => ({ name, run: () => navigate(path) }))) },
    { name: "Jobs", items: jobs.map((job) => ({ name: `${job.name} · ${job.phase} · ${job.id.slice(-8)}`, run: () => navigate(`/jobs/${job.id}`) })) },
    { name: "Settings", items: matching(settings) },
  ].filter((group) => group.items.length > 0);
  return (
    <Autocomplete.Root open inline items={groups} filter={null} value={text} onValueChange={setText} itemToStringValue={(item: Action) => item.name} autoHighlight="always" keepHighlight>
      <Autocomplete.Input className={css.input} aria-label="Search pages, jobs and actions" placeholder="A page, a job's name or id, an action…" />
      <Autocomplete.Empty className={css.empty}>{groups.length === 0 ? "No page, job or action is called that." : null}</Autocomplete.Empty>
      <Autocomplete.List className={css.list}>
        {(group: Group) => (
          <Autocomplete.Group key={group.name} items={group.items}>
            <Autocomplete.GroupLabel className={css.group}>{group.name}</Autocomplete.GroupLabel>
            <Autocomplete.Collection>
              {(item: Action) => (
                <Autocomplete.Item key={item.name} value={item} className={css.item} onClick={() => choose(item)}>
                  {item.name}
                </Autocomplete.Item>
              )}
            </Autocomplete.Collection>
          </Autocomplete.Group>
        )}
      </Autocomplete.List>
      <div className={css.foot}>
        <span>
          <kbd>↑</kbd> <kbd>↓</kbd> choose, <kbd>Enter</kbd> go, <kbd>Esc</kbd> close
        </span>
        <Dialog.Close className={css.close}>Close</Dialog.Close>
      </div>
    </Autocomplete.Root>
  );
}

/** Jobs whose name begins with a text or whose id it is, as the controller finds them; the newest without one. */
function useFoundJobs(text: string): Job[] {
  const [asked, setAsked] = useState("");
  const project = useProject();
  useEffect(() => {
    const timer = window.setTimeout(() => setAsked(text.trim()), TYPING_PAUSE);
    return () => clearTimeout(timer);
  }, [text]);
  const query = new URLSearchParams({ limit: String(MOST_JOBS), fields: "id,name,phase" });
  if (asked) query.set("q", asked);
  if (project) query.set("project", project);
  const found = useApi<{ jobs: Job[] }>(`/v1/jobs?${query}`);
  return found.data?.data.jobs ?? [];
}
