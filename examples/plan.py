"""Agents that each take several turns: all that are at the same turn share one batch.

    python examples/plan.py

Nothing here is written for batches but the actor's YAML. Each agent awaits its own answers; calls
that wait at the same time travel together.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import claude_batch as cb

ACTORS = Path(__file__).parent / "actors" / "nested.yaml"
GOALS = ("move a shop to another host", "teach a class to sail", "digitise a paper archive")


async def agent(planner: cb.Actor, goal: str) -> str:
    """Plan, then improve the plan: two turns of one conversation."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Plan this: {goal}."}]
    draft = await planner.respond(cb.ActorRequest(messages=messages, key=f"{goal}/draft"))
    messages += [
        {"role": "assistant", "content": draft.content},
        {"role": "user", "content": "What would go wrong first? Mend the plan."},
    ]
    final = await planner.respond(cb.ActorRequest(messages=messages, key=f"{goal}/final"))
    return final.text


async def main() -> None:
    """Run all agents at once."""
    planner = cb.load_actor(ACTORS, name="planner")
    plans = await asyncio.gather(*(agent(planner, goal) for goal in GOALS))
    for goal, plan in zip(GOALS, plans, strict=True):
        print(f"── {goal}\n{plan}")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except cb.ActorError as error:
        sys.exit(str(error))
