import { useLocation, useSearch } from "wouter";

/** Returns the query of the page's address and a way to change it, so that a link holds the filters. */
export function useFilters(): [URLSearchParams, (change: Record<string, string | null>) => void] {
  const [location, navigate] = useLocation();
  const search = useSearch();
  const filters = new URLSearchParams(search);
  const change = (changes: Record<string, string | null>) => {
    // A filter that waited for the end of typing must not call a person back who has left the page.
    if (window.location.pathname !== location) return;
    const next = new URLSearchParams(search);
    for (const [name, value] of Object.entries(changes)) {
      if (value) next.set(name, value);
      else next.delete(name);
    }
    const query = next.toString();
    navigate(query ? `${location}?${query}` : location, { replace: true });
  };
  return [filters, change];
}
