"""Makes the Python API fail in every way that speaks of its key, with all logging on.

python failures.py ACTOR FOLDER: asks, and writes what was raised to FOLDER, pickled and as text.
What an error holds, its causes and its traceback with the values of locals, is written too.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import anthropic

import claude_batch as cb


def everything(error: BaseException) -> str:
    """All that a program could show of an error: messages, fields, causes, and the traceback."""
    told: list[str] = [*traceback.format_exception(error)]
    seen: BaseException | None = error
    while seen is not None:
        told += [repr(seen), str(seen), repr(vars(seen))]
        seen = seen.__cause__ or seen.__context__
    return "\n".join(told)


def main(path: str, folder: Path) -> None:
    """Fail in each way; every one must raise, or the search would find nothing to search."""

    def ask(ledger: str, **settings: str) -> None:
        with cb.load_actor(path, ledger=str(folder / ledger), max_wait="5s", **settings) as actor:
            actor.respond_sync("hello")

    def misnamed() -> None:
        os.environ["WITH_A_BREAK"] = os.environ["ANTHROPIC_API_KEY"] + "\n"
        ask("break.db", api_key_env="WITH_A_BREAK")

    def sdk() -> None:
        client = cb.client_sync(ledger=str(folder / "sdk.db"), max_wait="5s")
        client.messages.create(
            model="claude-haiku-4-5", max_tokens=9, messages=[{"role": "user", "content": "hello"}]
        )

    def live() -> None:
        with cb.load_actor(path.replace("batched", "live")) as actor:
            actor.respond_sync("hello")

    ways: dict[str, Callable[[], None]] = {
        "halted": lambda: ask("halted.db"),
        "unreachable": lambda: ask("unreachable.db", base_url="http://127.0.0.1:9"),
        "misnamed": misnamed,
        "sdk": sdk,
        "live": live,
    }
    for name, fail in ways.items():
        try:
            fail()
        except (cb.ActorError, anthropic.AnthropicError) as error:
            (folder / f"{name}.txt").write_text(everything(error), "utf-8")
            if isinstance(error, cb.ActorError):
                (folder / f"{name}.pickle").write_bytes(pickle.dumps(error))
            print(name, type(error).__name__)
        else:
            sys.exit(f"{name} did not fail")


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG)
    main(sys.argv[1], Path(sys.argv[2]))
