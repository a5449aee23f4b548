"""`python -m claude_batch`: the `claude-batch` command."""

from __future__ import annotations

from claude_batch.cli import main

if __name__ == "__main__":
    main()
