"""A home as a verified archive in any object store."""
