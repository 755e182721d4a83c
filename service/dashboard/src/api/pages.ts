import { infiniteQueryOptions, useInfiniteQuery } from "@tanstack/react-query";
import { get } from "./client";

interface Page {
  next_cursor?: string | null;
}

/** Asks for a list page by page; what is loaded stays while more is asked for. */
export function usePages<T extends Page>(path: string, query: URLSearchParams, every?: number) {
  return useInfiniteQuery({ ...pagesQuery<T>(path, query), ...(every ? { refetchInterval: every } : {}) });
}

export function pagesQuery<T extends Page>(path: string, query: URLSearchParams) {
  const asked = query.toString();
  return infiniteQueryOptions({
    queryKey: [path, "pages", asked],
    initialPageParam: "",
    queryFn: async ({ pageParam, signal }) => {
      const full = new URLSearchParams(asked);
      if (pageParam) full.set("cursor", pageParam);
      const text = full.toString();
      return (await get<T>(text ? `${path}?${text}` : path, signal)).data;
    },
    getNextPageParam: (page: T) => page.next_cursor || undefined,
  });
}
