import { QueryClient, keepPreviousData, queryOptions, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { Problem, get, type Answer } from "./client";
import type * as Api from "./types";

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      // The event stream says when an answer is old.
      staleTime: 30_000,
      refetchOnWindowFocus: false,
      retry: (failures, error) => !(error instanceof Problem) && failures < 1,
      placeholderData: keepPreviousData,
    },
  },
});

/** Asks for an address of the API; its path is its key, so that a prefix marks all below it old. */
export function useApi<T>(path: string | null, every?: number): UseQueryResult<Answer<T>> {
  return useQuery({ ...pathQuery<T>(path ?? "none"), enabled: path !== null, ...(every ? { refetchInterval: every } : {}) });
}

const pathQuery = <T,>(path: string) => queryOptions({ queryKey: path.split("?"), queryFn: ({ signal }) => get<T>(path, signal) });

/** Asks for addresses before the page is drawn that shows them. */
export function askFor(...paths: string[]): void {
  for (const path of paths) void queryClient.prefetchQuery(pathQuery(path));
}

export const useJob = (job: string) => useApi<Api.Job>(`/v1/jobs/${job}`);

/** What a curve counts: auto is what is left while its job runs, and else the total. */
export type WantedBasis = "auto" | "remaining" | "total";

export function useCurve(job: string | null, decision: number | null, basis: WantedBasis = "auto") {
  const asked = [...(decision === null ? [] : [`decision=${decision}`]), ...(basis === "auto" ? [] : [`basis=${basis}`])].join("&");
  return useApi<Api.Curve>(job === null ? null : `/v1/jobs/${job}/curve${asked && "?"}${asked}`);
}

/** Marks as old what shows a job: the job, its lists, and the pages of jobs. */
export async function refreshJob(job: string | null): Promise<void> {
  await queryClient.invalidateQueries({
    predicate: ({ queryKey }) => {
      const path = String(queryKey[0]);
      if (job === null) return true;
      return path === "/v1/jobs" || path === `/v1/jobs/${job}` || path.startsWith(`/v1/jobs/${job}/`);
    },
  });
}
