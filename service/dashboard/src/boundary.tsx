import { Component, useEffect, useState, type ReactNode } from "react";
import { Notice } from "./parts/basics";
import parts from "./parts/parts.module.css";

interface Props {
  /** What is shown; another place is tried anew. */
  place: string;
  /** Whether nothing takes the place of a part that is not there. */
  isQuiet?: boolean;
  children: ReactNode;
}

interface State {
  error: Error | null;
  place: string;
}

/** Keeps the frame of the page where a part of it cannot be loaded or drawn. */
export class Boundary extends Component<Props, State> {
  override state: State = { error: null, place: this.props.place };

  static getDerivedStateFromError(error: Error): Partial<State> {
    return { error };
  }

  static getDerivedStateFromProps(props: Props, state: State): Partial<State> | null {
    return props.place === state.place ? null : { error: null, place: props.place };
  }

  override render() {
    const { error } = this.state;
    if (error === null) return this.props.children;
    if (this.props.isQuiet) return null;
    return isUnloaded(error) ? <Unloaded /> : <Undrawn error={error} />;
  }
}

// What browsers say of a module that did not arrive; React keeps such a module's failure.
const UNLOADED = /dynamically imported module|importing a module script|error loading|load failed|failed to fetch/i;

function isUnloaded(error: Error): boolean {
  return UNLOADED.test(error.message);
}

const RELOADED = "scavenger-reloaded";
const ASK_INTERVAL = 1_000;
// A file that is missing for good would load the page again and again.
const RELOAD_INTERVAL = 30_000;

/** A page whose code did not come: the controller is gone, or another version took its place. */
function Unloaded() {
  const [isFruitless] = useState(() => Date.now() - Number(sessionStorage.getItem(RELOADED) ?? 0) < RELOAD_INTERVAL);
  useEffect(() => {
    if (isFruitless) return undefined;
    const timer = window.setInterval(() => {
      // Whatever it answers: a page that is loaded anew names the files that the controller has now.
      fetch("/healthz", { cache: "no-store" }).then(reload, () => undefined);
    }, ASK_INTERVAL);
    return () => clearInterval(timer);
  }, [isFruitless]);
  return (
    <Notice tone="warning">
      <span data-state="unloaded">
        The files of this page did not come from the controller.{" "}
        {isFruitless ? "" : "It opens by itself as soon as the controller answers; pages that were open before show their last data."}
      </span>
      {isFruitless && <LoadAgain />}
    </Notice>
  );
}

function reload(): void {
  sessionStorage.setItem(RELOADED, String(Date.now()));
  window.location.reload();
}

const LoadAgain = () => (
  <button type="button" className={parts.button} onClick={reload}>
    Load it again
  </button>
);

function Undrawn({ error }: { error: Error }) {
  return (
    <Notice tone="bad">
      <span>This page could not be drawn: {error.message}. The controller and its jobs are not affected.</span>
      <LoadAgain />
    </Notice>
  );
}
