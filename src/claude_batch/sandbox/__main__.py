"""`python -m claude_batch.sandbox`: the sandbox as a separate process."""

from __future__ import annotations

from .command import sandbox

if __name__ == "__main__":  # pragma: no branch
    sandbox(prog_name="python -m claude_batch.sandbox")
