// Replace native modules of code-server that its npm package has only as C++ source. Loaded with `node --require`, which the processes
// that code-server forks inherit; the shared installation is not changed, and workspaces need no compiler.
"use strict";

const { registerHooks } = require("node:module");
const path = require("node:path");
const { pathToFileURL } = require("node:url");

const REPLACED = new Map([
  ["@vscode/spdlog", "spdlog.cjs"],
  ["@vscode/native-watchdog", "native_watchdog.cjs"],
]);

registerHooks({
  resolve(specifier, context, nextResolve) {
    const file = REPLACED.get(specifier);
    if (file === undefined) return nextResolve(specifier, context);
    return { url: pathToFileURL(path.join(__dirname, file)).href, format: "commonjs", shortCircuit: true };
  },
});
