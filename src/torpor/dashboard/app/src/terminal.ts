// Connect a terminal on the page with a shell in a workspace.
//
// Over a WebSocket: binary frames are the bytes of the terminal, text frames are JSON (the page sends `resize`, the server sends
// `exit` and `sleeping_soon`).

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

/** Open a shell in this element. The returned function closes it; `onEnd` gets the reason when it ends by itself. */
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
  let ending = "";

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
    const message = JSON.parse(data) as { exit?: number; sleeping_soon?: string };
    if (message.exit !== undefined) ending = `The shell exited with code ${message.exit}.`;
    // A full-screen program would be overwritten; the banner shows the same text.
    else if (message.sleeping_soon && terminal.buffer.active.type === "normal")
      terminal.write(`\r\n[torpor] ${sleepLine(message.sleeping_soon, Date.now())}\r\n`);
  };
  socket.onclose = ({ reason }) => {
    if (isClosed) return;
    terminal.options.disableStdin = true;
    terminal.options.cursorBlink = false;
    onEnd(ending || reason || (isOpen ? "The connection was lost." : "The shell could not be opened. The workspace may be stopping."));
  };

  // The shell gets every key, including Tab. Alt+F1 moves the focus out of it.
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
