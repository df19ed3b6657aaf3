"""A home as a verified archive in any object store."""

from torpor.archives.archives import HomeArchives
from torpor.archives.tree import tree_root

__all__ = ["HomeArchives", "tree_root"]
