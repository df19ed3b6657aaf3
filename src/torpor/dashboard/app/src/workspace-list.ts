// The workspaces that this user sees, kept up to date from lists and events.
//
// Functions on a value: `apply(list, event)` returns the next value. A list may be read while events arrive, so an event
// carries the whole state of one workspace and never a difference.

import type { ChangeEvent, Workspace } from "./api-types.ts";

export interface WorkspaceList {
  /** By id; null until the first list is read. */
  workspaces: ReadonlyMap<string, Workspace> | null;
  /** Workspaces that changed while a list is being read; null when no list is being read. */
  early: readonly Workspace[] | null;
}

export const UNKNOWN: WorkspaceList = { workspaces: null, early: null };

/** The list was read. Changes that arrived since it was requested are newer. */
export function listed(list: WorkspaceList, items: readonly Workspace[]): WorkspaceList {
  const workspaces = new Map(items.map((item) => [item.id, item]));
  for (const one of list.early ?? []) put(workspaces, one);
  return { workspaces, early: null };
}

/** A list was requested. Changes are collected until it arrives. */
export function listRequested(list: WorkspaceList): WorkspaceList {
  return { ...list, early: [] };
}

/** The request for the list failed. */
export function listFailed(list: WorkspaceList): WorkspaceList {
  return { ...list, early: null };
}

export function apply(list: WorkspaceList, event: ChangeEvent): WorkspaceList {
  return event.workspace ? updated(list, event.workspace) : list;
}

export function updated(list: WorkspaceList, workspace: Workspace): WorkspaceList {
  const early = list.early && [...list.early, workspace];
  if (list.workspaces === null) return { ...list, early };
  const workspaces = new Map(list.workspaces);
  put(workspaces, workspace);
  return { workspaces, early };
}

function put(workspaces: Map<string, Workspace>, workspace: Workspace): void {
  if (workspace.phase === "DELETED") workspaces.delete(workspace.id);
  else workspaces.set(workspace.id, workspace);
}

/** Sorted by name, so that rows do not move when a status changes. */
export function sortedByName(list: WorkspaceList): Workspace[] {
  return [...(list.workspaces?.values() ?? [])].sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
}

export function findByName(list: WorkspaceList, name: string): Workspace | null {
  for (const one of list.workspaces?.values() ?? []) if (one.name === name || one.id === name) return one;
  return null;
}
