"use strict";

// Connects the tab to its terminal session.
//
// The shell runs in the workspace and outlives this page. The page keeps the session's name and the offset that it has drawn
// (see terminal.py for the protocol), so a broken connection continues where it broke, and a reload replays the kept output.

const PIECE_BYTES = 64 * 1024;
const PATIENCE_MS = [250, 500, 1000, 2000, 4000, 8000];
const TRIES_BEFORE_DOUBT = 4;

// Resets the screen and the modes that a program left behind when it ended; the text stays readable.
const TIDY = "\x1b[?1047l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[!p\x1b[0m";

const CLOSED_FOR_GOOD = {
  4001: ["This terminal is open in another tab.", "Use it here"],
  4002: ["Too many terminals are open.", "Try again"],
  1008: ["The terminal refused a message of this page.", "Reload"],
};

const THEMES = {
  dark: {
    background: "#15171c", foreground: "#d9dce3", cursor: "#e8b765", cursorAccent: "#15171c", selectionBackground: "#3b4252",
    black: "#3a3f4b", red: "#e8746b", green: "#8fc379", yellow: "#e8b765", blue: "#79aaf0", magenta: "#c792dd", cyan: "#66c2c7", white: "#c8ccd4",
    brightBlack: "#7d8390", brightRed: "#ff938a", brightGreen: "#a9db93", brightYellow: "#f6cf8b", brightBlue: "#9cc3ff", brightMagenta: "#dcb0ee",
    brightCyan: "#8adde1", brightWhite: "#f3f4f7",
  },
  light: {
    background: "#fbfbf9", foreground: "#24262b", cursor: "#9a6a10", cursorAccent: "#fbfbf9", selectionBackground: "#d5dff0",
    black: "#24262b", red: "#b3261e", green: "#36701f", yellow: "#865b08", blue: "#1f5fbf", magenta: "#8a3aa8", cyan: "#0e6f77", white: "#6b6f78",
    brightBlack: "#5d616a", brightRed: "#cf3b31", brightGreen: "#3f8225", brightYellow: "#9a6a10", brightBlue: "#2f72d8", brightMagenta: "#a04bc0",
    brightCyan: "#12828b", brightWhite: "#3a3d44",
  },
};

const KEYS = { escape: "\x1b", tab: "\t", left: "D", right: "C", up: "A", down: "B" };

const at = (id) => document.getElementById(id);
const prefersLight = matchMedia("(prefers-color-scheme: light)");

// ── the terminal ────────────────────────────────────────────────────────────────────────────────────────────────────

const terminal = new Terminal({
  allowProposedApi: false,
  cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
  fontFamily: 'ui-monospace, "SF Mono", "Cascadia Code", "JetBrains Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace',
  fontSize: matchMedia("(pointer: coarse)").matches ? 13 : 14,
  lineHeight: 1.15,
  macOptionIsMeta: true,
  minimumContrastRatio: 4.5,
  screenReaderMode: localStorage.getItem("screen reader") === "on",
  scrollback: 10000,
  theme: prefersLight.matches ? THEMES.light : THEMES.dark,
});
const fit = new FitAddon.FitAddon();
terminal.loadAddon(fit);
terminal.open(at("terminal"));
fit.fit();
prefersLight.addEventListener("change", () => {
  terminal.options.theme = prefersLight.matches ? THEMES.light : THEMES.dark;
});

let fitting = 0;
new ResizeObserver(() => {
  cancelAnimationFrame(fitting);
  fitting = requestAnimationFrame(() => fit.fit());
}).observe(at("terminal"));

// iOS lays its keyboard over the page instead of resizing it.
visualViewport?.addEventListener("resize", () => {
  document.body.style.setProperty("--height", `${visualViewport.height}px`);
  scrollTo(0, 0);
});

// ── the session ─────────────────────────────────────────────────────────────────────────────────────────────────────

const newName = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

// A duplicated tab copies the session's name. The lock shows that the first tab is still open, and then the copy gets a new
// session. A reload releases the lock a moment late, hence the timeout.
async function sessionName() {
  const kept = sessionStorage.getItem("session");
  const hold = (name, options) =>
    new Promise((got) => {
      const never = new Promise(() => {});
      navigator.locks
        .request(`terminal ${name}`, options, () => (got(true), never))
        .catch(() => got(false));
    });
  let name = kept ?? newName();
  if (navigator.locks && !(await hold(name, { signal: AbortSignal.timeout(1000) }))) {
    name = newName();
    hold(name, {});
  }
  sessionStorage.setItem("session", name);
  return name;
}

const session = {
  name: "",
  socket: null,
  tries: 0,
  retry: 0,
  received: 0, // the offset after the last byte received
  drawn: 0, // the offset after the last byte on the screen
  told: 0, // the last offset reported to the workspace
  replayedUntil: 0, // output before this offset is a replay
};

function connect() {
  clearTimeout(session.retry);
  const where = new URL("pty", location.href);
  where.protocol = where.protocol.replace("http", "ws");
  where.search = new URLSearchParams({ session: session.name, seen: session.received, cols: terminal.cols, rows: terminal.rows });
  const socket = new WebSocket(where);
  socket.binaryType = "arraybuffer";
  session.socket?.close();
  session.socket = socket;
  socket.onmessage = ({ data }) => {
    if (socket !== session.socket) return;
    if (typeof data === "string") attached(JSON.parse(data).attached);
    else draw(new Uint8Array(data));
  };
  socket.onclose = ({ code }) => {
    if (socket === session.socket) disconnected(code);
  };
}

function attached(now) {
  const resumed = now.offset === session.received && session.received > 0 && !now.new;
  if (now.new && session.received > 0) terminal.write(`${TIDY}\r\n[the workspace was restarted; this is a new shell]\r\n`);
  else if (!resumed) terminal.reset();
  session.received = session.drawn = now.offset;
  session.told = -1;
  session.replayedUntil = resumed ? 0 : now.until;
  session.tries = 0;
  say(null);
  resize();
  tell();
  followStanding();
}

function draw(bytes) {
  const offset = (session.received += bytes.length);
  terminal.write(bytes, () => {
    session.drawn = Math.max(session.drawn, Math.min(offset, session.received));
    tell();
  });
}

function isOpen() {
  return session.socket?.readyState === WebSocket.OPEN;
}

function tell() {
  if (!isOpen() || (session.told >= 0 && session.drawn - session.told < PIECE_BYTES / 2)) return;
  session.told = session.drawn;
  session.socket.send(JSON.stringify({ seen: session.drawn }));
}

function resize() {
  if (isOpen()) session.socket.send(JSON.stringify({ resize: [terminal.cols, terminal.rows] }));
}

function type(bytes) {
  // A replay may contain queries ("where is the cursor?") that were answered before; xterm must not answer them again.
  if (!isOpen() || session.drawn < session.replayedUntil) return;
  for (let from = 0; from < bytes.length; from += PIECE_BYTES) session.socket.send(bytes.subarray(from, from + PIECE_BYTES));
}

function disconnected(code) {
  session.socket = null;
  following?.abort();
  if (code in CLOSED_FOR_GOOD) {
    const [message, action] = CLOSED_FOR_GOOD[code];
    say(message, action, code === 1008 ? () => location.reload() : again, true);
    return;
  }
  session.tries += 1;
  const wait = PATIENCE_MS[Math.min(session.tries, PATIENCE_MS.length) - 1];
  session.retry = setTimeout(connect, wait * (0.75 + Math.random() / 2));
  // Only opening a page starts a stopped workspace: a socket that reconnects must not undo a stop.
  if (session.tries > TRIES_BEFORE_DOUBT) say("Reconnecting… The workspace may be stopped.", "Start it", () => location.reload());
  else say("Reconnecting…");
}

function again() {
  session.tries = 0;
  say("Reconnecting…");
  connect();
}

for (const [target, event] of [[window, "online"], [document, "visibilitychange"], [window, "pageshow"]]) {
  target.addEventListener(event, () => {
    if (session.tries > 0 && !document.hidden && session.socket === null) connect();
  });
}

// ── warnings ────────────────────────────────────────────────────────────────────────────────────────────────────────
//
// A line warns before the workspace is stopped because it is idle. The page asks the proxy, not the workspace, and writes the line
// to the screen, not to the pty: neither counts as use, so an open tab does not keep the workspace awake.

let following = null;
const workspace = document.querySelector('meta[name="workspace"]').content;
let warnedOf = null; // the time of the stop that this page has shown

async function followStanding() {
  following?.abort();
  const { signal } = (following = new AbortController());
  let after = "";
  let failures = 0;
  while (!signal.aborted) {
    try {
      const answer = await fetch(`/.torpor/standing?after=${encodeURIComponent(after)}`, { cache: "no-store", signal });
      if (answer.status === 204 || [401, 403, 404].includes(answer.status)) return;
      if (!answer.ok) throw new Error(String(answer.status));
      const stands = await answer.json();
      after = stands.after;
      failures = 0;
      warn(stands.sleeps_at ?? null);
    } catch {
      if (signal.aborted) return;
      failures += 1;
      after = "";
      await new Promise((done) => setTimeout(done, Math.min(30000, 500 * 2 ** failures)));
    }
  }
}

function warn(sleepsAt) {
  if (sleepsAt === warnedOf) return;
  warnedOf = sleepsAt;
  if (at("bar").dataset.warns) say(null);
  if (sleepsAt === null) return;
  const left = Math.round((Date.parse(sleepsAt) - Date.now()) / 1000);
  const inTime = left < 1 ? "now" : left < 60 ? `in ${left} s` : `in ${Math.round(left / 60)} min`;
  const clock = new Date(sleepsAt).toLocaleTimeString();
  const words = `${workspace} goes to sleep at ${clock} (${inTime}) because it is not in use; type to keep it awake`;
  if (terminal.buffer.active.type !== "alternate") terminal.write(`\r\n[torpor] ${words}\r\n`);
  else {
    // A line would be drawn over a full-screen program.
    say(words, "Dismiss", () => say(null), true);
    at("bar").dataset.warns = "yes";
  }
}

// ── keyboard ────────────────────────────────────────────────────────────────────────────────────────────────────────

const encoder = new TextEncoder();
const control = document.querySelector('[data-key="control"]');
const isControlHeld = () => control.getAttribute("aria-pressed") === "true";
const holdControl = (held) => control.setAttribute("aria-pressed", String(held));

terminal.onData((text) => {
  let typed = text;
  if (isControlHeld() && /^[@-_a-z ]$/i.test(text)) {
    typed = String.fromCharCode(text.toUpperCase().charCodeAt(0) & 31);
    holdControl(false);
  }
  type(encoder.encode(typed));
});
terminal.onBinary((text) => type(Uint8Array.from(text, (letter) => letter.charCodeAt(0) & 255)));
terminal.onResize(resize);

terminal.attachCustomKeyEventHandler((event) => {
  if (event.type !== "keydown") return true;
  if (event.altKey && event.key === "F1") {
    event.preventDefault();
    at("reader").focus();
    return false;
  }
  if (event.ctrlKey && event.shiftKey && event.code === "KeyC" && terminal.hasSelection()) {
    event.preventDefault();
    navigator.clipboard?.writeText(terminal.getSelection());
    return false;
  }
  // The browser handles this key and pastes.
  return !(event.ctrlKey && event.shiftKey && event.code === "KeyV");
});

at("keys").addEventListener("pointerdown", (event) => event.preventDefault()); // keeps the focus, and with it the phone's keyboard, in the terminal
at("keys").addEventListener("click", async ({ target }) => {
  const key = target.dataset.key;
  if (!key) return;
  if (key === "control") holdControl(!isControlHeld());
  else if (key === "paste") terminal.paste(await navigator.clipboard.readText().catch(() => ""));
  else if (KEYS[key].length === 1 && KEYS[key] >= "A" && KEYS[key] <= "D") terminal.input((terminal.modes.applicationCursorKeysMode ? "\x1bO" : "\x1b[") + KEYS[key]);
  else terminal.input(KEYS[key]);
  terminal.focus();
});

// ── messages beside the terminal ────────────────────────────────────────────────────────────────────────────────────

function say(message, action = "", act = null, resting = false) {
  at("bar").hidden = message === null;
  delete at("bar").dataset.warns;
  at("bar").classList.toggle("resting", resting);
  at("message").textContent = message ?? "";
  at("act").hidden = !action;
  at("act").textContent = action;
  at("act").onclick = () => {
    act?.();
    terminal.focus();
  };
}

function showReaderMode() {
  at("reader").setAttribute("aria-pressed", String(terminal.options.screenReaderMode));
}

at("reader").addEventListener("click", () => {
  terminal.options.screenReaderMode = !terminal.options.screenReaderMode;
  localStorage.setItem("screen reader", terminal.options.screenReaderMode ? "on" : "off");
  showReaderMode();
});
at("back").addEventListener("click", () => terminal.focus());
at("help").addEventListener("keydown", ({ key }) => key === "Escape" && terminal.focus());
showReaderMode();

terminal.textarea?.setAttribute("aria-label", at("terminal").getAttribute("aria-label"));
terminal.focus();
sessionName().then((name) => {
  session.name = name;
  connect();
});
