"""Asks single calls, all at once: python calls.py ACTOR PROMPTS OUT keys|bytes.

PROMPTS are JSON lines with `id` and `prompt`; OUT gets a line for each, in that order, once all are
answered. Asked again after it died, it joins the calls that it made before: by their keys; or, with
`bytes`, it keeps each answer as it comes, and asks only for the others again, in the same words.
Ends as the command line does: 0, or 1 where some failed; 3 where it waited too long; 4 where the
account halted.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import claude_batch as cb

Json = dict[str, Any]


async def ask(actor: cb.Actor, asked: Json, key: str | None) -> Json:
    """One line of the output."""
    try:
        answer = await actor.respond(asked["prompt"], key=key)
    except cb.BatchRequestError as error:
        return _failure(asked, error.error_type or error.outcome, error)
    except cb.AnswerRefusedError as error:
        about = {"batch_id": error.batch_id, "text": error.text, "stop_reason": error.stop_reason}
        return {**_failure(asked, "refusal", error), **about}
    except cb.ToolInterruptedError as error:
        about = {"batch_id": error.batch_id, "text": error.text, "stop_reason": error.stop_reason}
        return {**_failure(asked, "tool_interrupted", error), **about}
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


async def ask_all(path: str, asked: list[Json], keep: Callable[[Json], None] | None) -> list[Any]:
    """A line, or what was raised, for each."""
    actor = cb.load_actor(path)

    async def kept(each: Json) -> Json:
        line = await ask(actor, each, each["id"] if keep is None else None)
        if keep is not None:
            keep(line)
        return line

    tasks = [asyncio.create_task(kept(each)) for each in asked]
    print(f"asked {len(tasks)}", file=sys.stderr, flush=True)
    # A halt ends every call, but each is heard: none may be left that nobody waits for.
    return await asyncio.gather(*tasks, return_exceptions=True)


def main(path: str, prompts: str, out: str, known_by: str) -> int:
    """Ask all, and write OUT as a whole."""
    asked: list[Json] = [json.loads(line) for line in Path(prompts).read_text("utf-8").splitlines()]
    store = Path(f"{out}.answers")
    answers: dict[str, Json] = {}
    if store.exists():
        # The process may have died while it wrote the last line.
        whole = store.read_text("utf-8").split("\n")[:-1]
        answers = {line["id"]: line for line in map(json.loads, whole)}
    left = [each for each in asked if each["id"] not in answers]
    with store.open("r+b" if store.exists() else "wb") as stream:
        stream.seek(sum(len(json.dumps(line)) + 1 for line in answers.values()))
        stream.truncate()

        def keep(line: Json) -> None:
            stream.write(f"{json.dumps(line)}\n".encode())
            stream.flush()

        ended = asyncio.run(ask_all(path, left, keep if known_by == "bytes" else None))
    for error in ended:
        if isinstance(error, cb.AccountHaltedError):
            print(f"halted: {error}", file=sys.stderr)
            return 4
    for error in ended:
        if isinstance(error, cb.BatchTimeoutError | cb.BudgetExceededError | cb.EngineStoppedError):
            print(f"parked: {error}", file=sys.stderr)
            return 3
        if isinstance(error, BaseException):
            raise error
    answers |= {line["id"]: line for line in ended}
    partial = f"{out}.partial"
    lines = (json.dumps(answers[each["id"]]) for each in asked)
    Path(partial).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    os.replace(partial, out)
    return 0 if all(answer["ok"] for answer in answers.values()) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
