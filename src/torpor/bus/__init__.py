"""Redis: hints, who is being used, and what changed. Whatever is lost here costs time, never a workspace."""
