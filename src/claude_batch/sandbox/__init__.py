"""A real local HTTP server that behaves like Anthropic's Message Batches API, faults on demand.

It is independent of the rest of claude-batch and imports nothing from it, so that it can test it.
The server needs the extra `sandbox` (starlette and uvicorn), which is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sandbox_settings import SandboxSettings

if TYPE_CHECKING:
    from .server import SandboxServer, create_app, serve

__all__ = ["SandboxServer", "SandboxSettings", "create_app", "serve"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from . import server
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("starlette", "uvicorn", "h11"):
            raise
        raise ImportError(
            f"the sandbox needs {missing}: pip install 'claude-batch[sandbox]'", name=missing
        ) from error
    return getattr(server, name)
