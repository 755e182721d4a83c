import { useInfiniteQuery } from "@tanstack/react-query";
import { get } from "./client";

/** Asks for a list page by page; what is loaded stays while more is asked for. */
export function usePages<T extends { next_cursor?: string | null }>(path: string, query: URLSearchParams, every?: number) {
  const asked = query.toString();
  return useInfiniteQuery({
    queryKey: [path, "pages", asked],
    initialPageParam: "",
    queryFn: async ({ pageParam, signal }) => {
      const full = new URLSearchParams(asked);
      if (pageParam) full.set("cursor", pageParam);
      const text = full.toString();
      return (await get<T>(text ? `${path}?${text}` : path, signal)).data;
    },
    getNextPageParam: (page: T) => page.next_cursor || undefined,
    ...(every ? { refetchInterval: every } : {}),
  });
}
