import { Popover } from "@base-ui/react/popover";
import { useRef, useState } from "react";
import { useAction } from "./actions";
import css from "./parts.module.css";

export interface Commands {
  /** Missing where the command line has no such command. */
  cli?: string;
  api: string;
}

/** Writes a request for a shell; the token stays in the shell's environment. */
export function curl(method: string, path: string, body?: unknown): string {
  const sent = method === "GET" ? "" : ` -X ${method}`;
  const data = body === undefined ? "" : ` --json '${JSON.stringify(body)}'`;
  return `curl${sent} -H "Authorization: Bearer $SCAVENGER_TOKEN"${data} '${window.location.origin}${path}'`;
}

const COPY = "Copy as CLI / API";

/** Offers what a page shows, or a button does, as a command and as a call of the API. */
export function CopyCommands({ commands, label = COPY }: { commands: Commands; label?: string }) {
  const [isOpen, setOpen] = useState(false);
  useAction(label === COPY ? label : null, () => setOpen(true));
  return (
    <Popover.Root open={isOpen} onOpenChange={setOpen}>
      <Popover.Trigger className={`${css.button} ${css.quiet}`}>{label}</Popover.Trigger>
      <Popover.Portal>
        <Popover.Positioner sideOffset={6} align="end" collisionPadding={8}>
          <Popover.Popup className={css.popup}>
            <Popover.Title render={<h2 />}>The same in a shell</Popover.Title>
            {commands.cli && <Command title="Command line" text={commands.cli} />}
            <Command title="API" text={commands.api} />
          </Popover.Popup>
        </Popover.Positioner>
      </Popover.Portal>
    </Popover.Root>
  );
}

/** The same of an action, folded: its dialog is about money first. */
export function InShell({ commands }: { commands: Commands }) {
  return (
    <details className={css.small}>
      <summary>The same in a shell</summary>
      {commands.cli && <Command title="Command line" text={commands.cli} />}
      <Command title="API" text={commands.api} />
    </details>
  );
}

export function Command({ title, text }: { title: string; text: string }) {
  const code = useRef<HTMLPreElement>(null);
  const [said, setSaid] = useState("Copy");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      // No clipboard on plain http from another computer: select it, so that a key copies it.
      if (code.current) window.getSelection()?.selectAllChildren(code.current);
      setSaid("Selected: press Ctrl+C");
    }
  };
  return (
    <div className={css.command}>
      <pre ref={code} tabIndex={0} aria-label={title}>
        {text}
      </pre>
      <button type="button" className={css.button} aria-label={`Copy ${title}`} onClick={() => void copy()}>
        <span aria-live="polite">{said}</span>
      </button>
    </div>
  );
}
