// Build the dashboard.

import { defineConfig } from "vite";

export default defineConfig({
  base: "/page/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2022",
    // The first versions with light-dark().
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    // The content security policy allows no data: URLs.
    assetsInlineLimit: 0,
    assetsDir: "hashed",
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 1000,
    reportCompressedSize: false,
  },
});
