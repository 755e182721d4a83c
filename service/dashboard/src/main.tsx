import "./styles/theme.css";
import { CSPProvider } from "@base-ui/react/csp-provider";
import { QueryClientProvider } from "@tanstack/react-query";
import { createRoot } from "react-dom/client";
import { queryClient } from "./api/queries";
import { begin, expectsSession } from "./api/session";
import { App, askAhead } from "./app";

// The answers travel while the page is drawn. A browser that is not signed in would only be refused.
if (expectsSession()) askAhead(window.location);
void begin();
const root = document.getElementById("root");
if (root) {
  // The content policy refuses style elements.
  createRoot(root).render(
    <CSPProvider disableStyleElements>
      <QueryClientProvider client={queryClient}>
        <App />
      </QueryClientProvider>
    </CSPProvider>,
  );
}
