// Write the log files of VS Code, in place of @vscode/spdlog: the same functions, formats and rotation, in JavaScript.
// The output panel reads these files, so what extensions print there would be lost without them.
"use strict";

const fs = require("node:fs");
const path = require("node:path");

const LEVELS = ["trace", "debug", "info", "warning", "error", "critical", "off"];

let lowest = 0;
const open = new Set();

class Logger {
  constructor(_type, _name, file, largest, files) {
    this.file = file;
    this.largest = largest;
    this.files = files;
    this.level = lowest;
    this.isFormatted = true;
    this.waiting = "";
    fs.mkdirSync(path.dirname(file), { recursive: true });
    this.size = fs.statSync(file, { throwIfNoEntry: false })?.size ?? 0;
    open.add(this);
  }

  trace(message) {
    this.write(0, message);
  }
  debug(message) {
    this.write(1, message);
  }
  info(message) {
    this.write(2, message);
  }
  warn(message) {
    this.write(3, message);
  }
  error(message) {
    this.write(4, message);
  }
  critical(message) {
    this.write(5, message);
  }

  getLevel() {
    return this.level;
  }
  setLevel(level) {
    this.level = level;
  }
  setPattern(_pattern) {
    this.isFormatted = true; // VS Code has one pattern: time, level, message
  }
  clearFormatters() {
    this.isFormatted = false;
  }

  write(level, message) {
    if (level < this.level || level < lowest) return;
    // Many messages come in one turn of the event loop; they are written together after it.
    if (this.waiting === "") setImmediate(() => this.flush());
    this.waiting += this.isFormatted ? `${now()} [${LEVELS[level]}] ${message}\n` : message;
  }

  flush() {
    if (this.waiting === "") return;
    const bytes = Buffer.from(this.waiting);
    this.waiting = "";
    try {
      if (this.size > 0 && this.size + bytes.length > this.largest) this.rotate();
      fs.appendFileSync(this.file, bytes);
      this.size += bytes.length;
    } catch {
      // A full disk or a removed folder must not end the editor.
    }
  }

  // log -> log.1 -> log.2, with the suffix last: name.1.log
  rotate() {
    const { dir, name, ext } = path.parse(this.file);
    const numbered = (number) => (number === 0 ? this.file : path.join(dir, `${name}.${number}${ext}`));
    for (let number = this.files - 1; number >= 0; number--) {
      if (!fs.existsSync(numbered(number))) continue;
      if (number === this.files - 1) fs.rmSync(numbered(number));
      else fs.renameSync(numbered(number), numbered(number + 1));
    }
    this.size = 0;
  }

  drop() {
    this.flush();
    open.delete(this);
  }
}

// As in the log files of the native module: local time with milliseconds.
function now() {
  const at = new Date();
  const local = new Date(at.getTime() - at.getTimezoneOffset() * 60_000);
  return local.toISOString().replace("T", " ").replace("Z", "");
}

process.on("exit", () => {
  for (const logger of open) logger.flush();
});

exports.version = 0;
exports.setLevel = (level) => {
  lowest = level;
};
exports.setFlushOn = (_level) => {};
exports.shutdown = () => {
  for (const logger of open) logger.drop();
};
exports.Logger = Logger;
exports.createRotatingLogger = async (name, file, largest, files) => new Logger("rotating", name, file, largest, files);
exports.createAsyncRotatingLogger = async (name, file, largest, files) => new Logger("rotating_async", name, file, largest, files);
