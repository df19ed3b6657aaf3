// The colour theme: light, dark or the system's.

import { observable } from "./observable.ts";

export type Theme = "system" | "light" | "dark";

const THEMES: readonly Theme[] = ["system", "light", "dark"];
const stored = localStorage.getItem("theme");

export const theme = observable<Theme>(stored === "light" || stored === "dark" ? stored : "system");

export function nextTheme(): void {
  const next = THEMES[(THEMES.indexOf(theme.get()) + 1) % THEMES.length] ?? "system";
  theme.set(next);
  if (next === "system") {
    localStorage.removeItem("theme");
    delete document.documentElement.dataset["theme"];
  } else {
    localStorage.setItem("theme", next);
    document.documentElement.dataset["theme"] = next;
  }
}
