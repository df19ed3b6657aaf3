"""A home as a verified stream, and where it sleeps (any object store)."""

from torpor.archives.archives import HomeArchives
from torpor.archives.tree import tree_root

__all__ = ["HomeArchives", "tree_root"]
