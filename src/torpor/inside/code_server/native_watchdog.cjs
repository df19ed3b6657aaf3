// In place of @vscode/native-watchdog: the extension host also checks from JavaScript, every second, that its parent still runs.
"use strict";

exports.start = () => {};
exports.exit = (code) => process.exit(code);
