// Which workspaces are there, as far as was told?
//
// A value and what is told: `tell(house, told)` gives the next value. The list may have been read while events were on their
// way, so an event is only ever the state of one workspace, never a step from another.

import type { Told, Workspace } from "./api-types.ts";

export interface House {
  /** By id; null until the first list came. */
  workspaces: ReadonlyMap<string, Workspace> | null;
  /** What was told while a list was on its way; null: none is. */
  early: readonly Workspace[] | null;
}

export const UNKNOWN: House = { workspaces: null, early: null };

/** The whole list was read; what was told since it was asked for counts more. */
export function listed(house: House, items: readonly Workspace[]): House {
  const workspaces = new Map(items.map((item) => [item.id, item]));
  for (const one of house.early ?? []) put(workspaces, one);
  return { workspaces, early: null };
}

/** A list was asked for: from now on what is told is kept for when it comes. */
export function asked(house: House): House {
  return { ...house, early: [] };
}

/** The list did not come. */
export function gaveUp(house: House): House {
  return { ...house, early: null };
}

export function tell(house: House, told: Told): House {
  return told.workspace ? shown(house, told.workspace) : house;
}

export function shown(house: House, workspace: Workspace): House {
  const early = house.early && [...house.early, workspace];
  if (house.workspaces === null) return { ...house, early };
  const workspaces = new Map(house.workspaces);
  put(workspaces, workspace);
  return { workspaces, early };
}

function put(workspaces: Map<string, Workspace>, workspace: Workspace): void {
  if (workspace.phase === "DELETED") workspaces.delete(workspace.id);
  else workspaces.set(workspace.id, workspace);
}

/** By name: a list in which nothing jumps. */
export function inOrder(house: House): Workspace[] {
  return [...(house.workspaces?.values() ?? [])].sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
}

export function named(house: House, name: string): Workspace | null {
  for (const one of house.workspaces?.values() ?? []) if (one.name === name || one.id === name) return one;
  return null;
}
