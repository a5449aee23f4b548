"""Asks single calls with keys, all at once: python calls.py ACTOR PROMPTS OUT.

PROMPTS are JSON lines with `id` and `prompt`; OUT gets a line for each, in that order, once all are
answered. Asked again after it died, it joins the calls that it made before. Ends as the command
line does: 0, or 1 where some failed; 3 where it waited too long; 4 where the account halted.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import claude_batch as cb


async def ask(actor: cb.Actor, asked: dict[str, str]) -> dict[str, Any]:
    """One line of the output."""
    try:
        answer = await actor.respond(asked["prompt"], key=asked["id"])
    except cb.BatchRequestError as error:
        return _failure(asked, error.error_type or error.outcome, error)
    except cb.MissingResultError as error:
        return _failure(asked, "missing_result", error)
    except cb.SubmissionUnknownError as error:
        return _failure(asked, "submission_unknown", error)
    return {
        "id": asked["id"],
        "ok": True,
        "text": answer.text,
        "stop_reason": answer.stop_reason,
        "batch_id": answer.batch_id,
    }


def _failure(asked: dict[str, str], kind: str, error: cb.ActorError) -> dict[str, Any]:
    return {"id": asked["id"], "ok": False, "error": {"type": kind, "message": str(error)}}


async def ask_all(path: str, asked: list[dict[str, str]]) -> list[Any]:
    """A line, or what was raised, for each."""
    actor = cb.load_actor(path)
    tasks = [asyncio.create_task(ask(actor, each)) for each in asked]
    print(f"asked {len(tasks)}", file=sys.stderr, flush=True)
    # A halt ends every call, but each is heard: none may be left that nobody waits for.
    return await asyncio.gather(*tasks, return_exceptions=True)


def main(path: str, prompts: str, out: str) -> int:
    """Ask all, and write OUT as a whole."""
    asked = [json.loads(line) for line in Path(prompts).read_text("utf-8").splitlines()]
    lines = asyncio.run(ask_all(path, asked))
    for error in lines:
        if isinstance(error, cb.AccountHaltedError):
            print(f"halted: {error}", file=sys.stderr)
            return 4
    for error in lines:
        if isinstance(error, (cb.BatchTimeoutError, cb.EngineStoppedError)):
            print(f"parked: {error}", file=sys.stderr)
            return 3
        if isinstance(error, BaseException):
            raise error
    partial = f"{out}.partial"
    Path(partial).write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    os.replace(partial, out)
    return 0 if all(line["ok"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
