import { defineConfig } from "vite";
import react from "@vitejs/plugin-react";

// The controller serves the bundle under a policy without inline scripts and styles, so every asset
// is a file of its own, and the polyfill for module preloading, an inline script, is left out.
export default defineConfig({
  plugins: [react()],
  build: {
    outDir: "static",
    emptyOutDir: true,
    target: "es2024",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: { proxy: { "/v1": process.env.SCAVENGER_URL ?? "http://127.0.0.1:8700" } },
});
