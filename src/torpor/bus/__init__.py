"""Redis: hints, use of workspaces, live events. Lost messages cost time, never a workspace."""
