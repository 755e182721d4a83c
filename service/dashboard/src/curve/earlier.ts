import { useQueries } from "@tanstack/react-query";
import { get } from "../api/client";
import { useApi } from "../api/queries";
import type { Curve, Job } from "../api/types";
import { findFront } from "./front";
import { optionsOf, type Option } from "./options";

const MOST = 4;

/** The front of an earlier job of the same model, from the curve of its last choice. */
export interface EarlierFront {
  id: string;
  name: string;
  front: Option[];
}

/** Returns the fronts of earlier jobs of a model that reached their target, newest first. */
export function useEarlierFronts(job: Job, isWanted: boolean): { count: number; fronts: EarlierFront[] } {
  const key = (job.spec.model as { key?: string } | undefined)?.key;
  const list = useApi<{ jobs: { id: string; name: string }[] }>(key ? `/v1/jobs?model=${encodeURIComponent(key)}&phase=succeeded&fields=name&limit=${MOST + 1}` : null);
  const others = (list.data?.data.jobs ?? []).filter((each) => each.id !== job.id).slice(0, MOST);
  const curves = useQueries({
    queries: others.map(({ id }) => ({
      queryKey: [`/v1/jobs/${id}/curve`, "basis=total"],
      queryFn: () => get<Curve>(`/v1/jobs/${id}/curve?basis=total`),
      enabled: isWanted,
    })),
  });
  const fronts = others.flatMap(({ id, name }, index) => {
    const curve = curves[index]?.data?.data;
    if (!isWanted || !curve || curve.basis !== "total") return [];
    const front = findFront(optionsOf(curve).filter((option) => option.point.on_front));
    return front.length ? [{ id, name, front }] : [];
  });
  return { count: others.length, fronts };
}
