// How do a terminal on the page and a shell in a workspace speak with each other?
//
// A WebSocket: binary frames are the terminal's bytes, text frames are JSON (`resize` from here, `exit` and `sleeping_soon` from
// there).

import { FitAddon } from "@xterm/addon-fit";
import { Terminal, type ITheme } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { withoutInlineStyles } from "./inline-styles.ts";
import { sleepLine } from "./sleep-warnings.ts";

withoutInlineStyles();

const DARK: ITheme = {
  background: "#151824",
  foreground: "#dcdfe8",
  cursor: "#f3d59b",
  cursorAccent: "#151824",
  selectionBackground: "#3b4462",
  black: "#3a4056",
  red: "#ee7f77",
  green: "#93c98a",
  yellow: "#ecc27c",
  blue: "#86b1f2",
  magenta: "#cb9be0",
  cyan: "#70c7cb",
  white: "#c9cedb",
  brightBlack: "#7f869c",
  brightRed: "#ff9f97",
  brightGreen: "#aee0a5",
  brightYellow: "#f8d79c",
  brightBlue: "#a8caff",
  brightMagenta: "#dfb8f0",
  brightCyan: "#92e0e4",
  brightWhite: "#f4f5f9",
};

/** Opens a shell on this element; the function that is returned closes it. `onEnd` is told why it ended. */
export function open(screen: HTMLElement, workspace: string, onEnd: (why: string) => void): () => void {
  const terminal = new Terminal({
    cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
    fontFamily: 'ui-monospace, "SF Mono", "Cascadia Code", "JetBrains Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace',
    fontSize: matchMedia("(pointer: coarse)").matches ? 13 : 14,
    lineHeight: 1.2,
    macOptionIsMeta: true,
    minimumContrastRatio: 4.5,
    scrollback: 10_000,
    theme: DARK,
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(screen);
  fit.fit();

  const where = new URL(`/api/v1/workspaces/${encodeURIComponent(workspace)}/shell`, location.href);
  where.protocol = where.protocol.replace("http", "ws");
  where.search = new URLSearchParams({ columns: String(terminal.cols), rows: String(terminal.rows) }).toString();
  const socket = new WebSocket(where);
  socket.binaryType = "arraybuffer";
  const encoder = new TextEncoder();
  let isOpen = false;
  let isClosed = false;
  let said = "";

  const send = (bytes: Uint8Array<ArrayBuffer> | string): void => {
    if (socket.readyState === WebSocket.OPEN) socket.send(bytes);
  };
  socket.onopen = () => {
    isOpen = true;
    send(JSON.stringify({ resize: [terminal.cols, terminal.rows] }));
  };
  socket.onmessage = ({ data }: MessageEvent<ArrayBuffer | string>) => {
    if (typeof data !== "string") {
      terminal.write(new Uint8Array(data));
      return;
    }
    const told = JSON.parse(data) as { exit?: number; sleeping_soon?: string };
    if (told.exit !== undefined) said = `The shell ended with ${told.exit}.`;
    // Where a program has the whole screen, the banner above it says the same.
    else if (told.sleeping_soon && terminal.buffer.active.type === "normal")
      terminal.write(`\r\n[torpor] ${sleepLine(told.sleeping_soon, Date.now())}\r\n`);
  };
  socket.onclose = ({ reason }) => {
    if (isClosed) return;
    terminal.options.disableStdin = true;
    terminal.options.cursorBlink = false;
    onEnd(said || reason || (isOpen ? "The connection broke." : "It could not be opened: it may just be falling asleep."));
  };

  // Everything else that is pressed belongs to the shell, Tab as well; this leads out of it.
  terminal.attachCustomKeyEventHandler((event) => {
    if (!event.altKey || event.key !== "F1") return true;
    event.preventDefault();
    if (event.type === "keydown") document.querySelector<HTMLElement>(".shell-head a")?.focus();
    return false;
  });
  terminal.textarea?.setAttribute("aria-label", screen.getAttribute("aria-label") ?? "Shell");

  terminal.onData((text) => send(encoder.encode(text)));
  terminal.onBinary((text) => send(Uint8Array.from(text, (letter) => letter.charCodeAt(0) & 255)));
  terminal.onResize(({ cols, rows }) => send(JSON.stringify({ resize: [cols, rows] })));
  let fitting = 0;
  const watching = new ResizeObserver(() => {
    cancelAnimationFrame(fitting);
    fitting = requestAnimationFrame(() => fit.fit());
  });
  watching.observe(screen);
  terminal.focus();

  return () => {
    isClosed = true;
    watching.disconnect();
    socket.close();
    terminal.dispose();
  };
}
