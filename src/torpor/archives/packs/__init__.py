"""Archives of format 2: incremental, in packs that the archives of one workspace share (docs/reference/archive-format.md)."""
