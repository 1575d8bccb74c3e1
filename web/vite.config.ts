import { defineConfig } from "vitest/config";

// Relative addresses: the server may be mounted below a root path.
export default defineConfig({
  base: "./",
  build: {
    outDir: "dist",
    target: "es2022",
    // The server's content security policy has no "data:" for fonts and scripts; nothing may be inlined.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: {
    proxy: { "/ui": "http://127.0.0.1:8000", "/v1": "http://127.0.0.1:8000", "/health": "http://127.0.0.1:8000" },
  },
  test: {
    environment: "jsdom",
    include: ["tests/**/*.test.{ts,tsx}"],
    setupFiles: ["tests/setup.ts"],
    // Busy machines: a test that takes a second on a quiet one is no failure.
    testTimeout: 30_000,
  },
});
