import { useState } from "react";
import type { Curve } from "../api/types";
import { formatDollars } from "../parts/format";
import parts from "../parts/parts.module.css";
import { pricePerHourSaved } from "./front";
import type { Option } from "./options";

/** What an hour is worth picks the option of the front at which the next hour saved costs more. */
export function PriceWish({ curve, front, pick, picked }: { curve: Curve; front: readonly Option[]; pick: (price: number) => void; picked: Option | null }) {
  const [text, setText] = useState("");
  if (curve.basis === "relative" || front.length < 2) return null;
  const place = picked ? front.findIndex((option) => option.id === picked.id) : -1;
  const asked = place >= 0 ? pricePerHourSaved(front, place) : null;
  return (
    <label className={parts.row}>
      <span className={parts.muted}>An hour saved is worth $</span>
      <input
        className={parts.input}
        style={{ width: "5.5rem" }}
        inputMode="decimal"
        aria-label="Dollars that an hour saved is worth"
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          const price = Number(event.target.value);
          if (event.target.value !== "" && price >= 0) pick(price);
        }}
      />
      {asked !== null && <span className={parts.muted}>the selected option pays {formatDollars(asked)} per hour saved</span>}
    </label>
  );
}
