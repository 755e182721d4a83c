import { Popover } from "@base-ui/react/popover";
import type { ReactNode } from "react";
import css from "./parts.module.css";

// Each symbol in at most fifteen words.
export const GLOSSARY = {
  K: "Workers: how many machines, or processes, train together.",
  B: "Global batch: samples that all workers together process in one iteration.",
  "γ": "Gradient noise: how much workers' gradients differ; noisier training gains more from larger batches.",
  "τ": "Time of one iteration: computing gradients plus synchronising them.",
  "φ": "Noise scale: the batch size at which noise and signal are equally strong.",
  knee: "Where the front bends: beyond it, more money buys little time.",
  front: "Options of which no other is both cheaper and faster.",
  band: "Eight of ten outcomes are expected between its two ends.",
  probe: "A configuration is profiled for some iterations, while the job trains.",
  generation: "Counts changes of the workers; each resize starts a new one.",
} as const;

export type Word = keyof typeof GLOSSARY;

export function Term({ word, children }: { word: Word; children?: ReactNode }) {
  return (
    <Popover.Root>
      <Popover.Trigger className={css.term} openOnHover delay={200}>
        {children ?? word}
      </Popover.Trigger>
      <Popover.Portal>
        <Popover.Positioner sideOffset={6}>
          <Popover.Popup className={css.popup}>
            <Popover.Description className={css.small}>{GLOSSARY[word]}</Popover.Description>
          </Popover.Popup>
        </Popover.Positioner>
      </Popover.Portal>
    </Popover.Root>
  );
}
