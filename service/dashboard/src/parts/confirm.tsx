import { AlertDialog } from "@base-ui/react/alert-dialog";
import { useState, type ReactNode } from "react";
import { explain } from "../api/client";
import { useAction } from "./actions";
import { Notice } from "./basics";
import { InShell, type Commands } from "./commands";
import css from "./parts.module.css";

/** Asks before an action that costs or saves money, and says why the controller refused it. */
export function Confirm({
  label,
  title,
  children,
  action,
  confirm,
  isDanger = false,
  isPrimary = false,
  isDisabled = false,
  commands,
}: {
  label: ReactNode;
  title: string;
  children: ReactNode;
  action: string;
  confirm: () => Promise<unknown>;
  isDanger?: boolean;
  isPrimary?: boolean;
  isDisabled?: boolean;
  /** The same action in a shell. */
  commands?: Commands;
}) {
  const [isOpen, setOpen] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [refusal, setRefusal] = useState<unknown>(null);
  useAction(isDisabled ? null : title.replace(/\?$/, ""), () => change(true));
  const style = isDanger ? css.danger : isPrimary ? css.primary : "";
  const change = (open: boolean) => {
    setOpen(open);
    if (open) setRefusal(null);
  };
  const act = async () => {
    setBusy(true);
    setRefusal(null);
    try {
      await confirm();
      setOpen(false);
    } catch (error) {
      setRefusal(error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <AlertDialog.Root open={isOpen} onOpenChange={change}>
      <AlertDialog.Trigger className={`${css.button} ${style}`} disabled={isDisabled}>
        {label}
      </AlertDialog.Trigger>
      <AlertDialog.Portal>
        <AlertDialog.Backdrop className={css.backdrop} />
        <AlertDialog.Popup className={css.dialog}>
          <AlertDialog.Title>{title}</AlertDialog.Title>
          <AlertDialog.Description render={<div />} className={css.stack}>
            {children}
          </AlertDialog.Description>
          {commands && <InShell commands={commands} />}
          {refusal !== null && <Notice tone="bad">{explain(refusal)}</Notice>}
          <div className={css.actions}>
            <AlertDialog.Close className={css.button}>Keep as it is</AlertDialog.Close>
            <button
              type="button"
              className={`${css.button} ${isDanger ? css.danger : css.primary}`}
              disabled={isBusy}
              onClick={() => void act()}
            >
              {isBusy ? "Asking…" : action}
            </button>
          </div>
        </AlertDialog.Popup>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}
