"""Find and hash the source files of a module without importing it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def source_digest(module: str, folders: Iterable[str] = ()) -> str | None:
    """Return a hex digest of the files that importing a module runs, or None if not found.

    The files are the module's own and the ``__init__.py`` of each package around it, not what they
    import. ``folders`` are searched before Python's path. Nothing is imported: a module that is not
    loaded yet is only located.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        files = _files(module, [*folders, *sys.path])
        for file in files:
            content = Path(file).read_bytes()
            digest.update(len(content).to_bytes(8))
            digest.update(content)
    except (OSError, ValueError):
        # ValueError: a name with a null character, from a ledger that another party wrote.
        return None
    return digest.hexdigest() if files else None


def _files(module: str, path: Sequence[str]) -> list[str]:
    """Return the files of a dotted name, outermost package first; empty if a part is missing."""
    found: list[str] = []
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        loaded = sys.modules.get(name)
        spec: ModuleSpec | None = None
        if loaded is None:
            spec = PathFinder.find_spec(name, path)
            file = None if spec is None else spec.origin
        else:
            file = getattr(loaded, "__file__", None)
        if file is not None:
            found.append(file)
        if depth == len(parts):
            return found if file is not None else []
        # A namespace package has a search path and no file.
        inner = getattr(loaded, "__path__", None) or (spec and spec.submodule_search_locations)
        if not inner:
            return []
        path = list(inner)
    return found
