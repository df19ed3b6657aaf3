// Describe which controllers cannot confine workspaces.

import type { Confinement } from "./api-types.ts";

export const lacking = (controllers: Confinement[]): Confinement[] => controllers.filter((one) => one.missing.length > 0);

export function summary(controllers: Confinement[]): string {
  if (controllers.length === 0) return "No controller is running. Torpor cannot tell whether workspaces are confined.";
  return lacking(controllers).length === 0 ? "Workspaces are confined: files, processes and network." : "";
}
