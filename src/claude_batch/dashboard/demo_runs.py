"""Runs that `claude-batch dashboard --sandbox` shows: a large one that grows, and small ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.request import ActorRequest
from claude_batch.providers.batch import ClaudeBatchProvider

LARGE: Final = 10_000
"""Requests of the run that grows."""

_TOPICS: Final = (
    *("tidal energy", "soil microbes", "bird migration", "glass ceramics", "urban heat"),
    *("coral reefs", "battery recycling", "speech disorders", "medieval trade", "crop rotation"),
)

_ANSWER: Final = """\
## {topic}

The abstract makes **one claim** and supports it with *{number} observations*.

1. The method is described well enough to repeat it.
2. The sample is small, and the authors say so.

| measure | before | after |
|---|---:|---:|
| mean | {low} | {high} |
| spread | 4.1 | 3.8 |

> The effect is small, but it is found in every group.
{more}
Verdict: `{verdict}`
"""

_MORE: Final = "\nThe discussion compares this with earlier work, and names what is still open.\n"


# In two parts, because this file may itself be a prompt: the tutorial reviews every module.
_DIRECTIVE: Final = "[[" + "sandbox:"


def look_up(title: str) -> str:
    """Look up a paper in the library's catalogue.

    Args:
        title: A part of the paper's title.
    """
    return f"{title}: 2019, 14 pages, cited 31 times"


def demo_answer(params: Mapping[str, Any]) -> Any:
    """Answer a request of the demo: a sandbox's responder."""
    if params.get("tools") or params["model"] != "claude-haiku-4-5":
        return None
    text = str(params["messages"][-1]["content"])
    if _DIRECTIVE in text:
        return None
    chance = random.Random(text)
    return _ANSWER.format(
        topic=chance.choice(_TOPICS).capitalize(),
        number=chance.randint(3, 40),
        low=chance.randint(10, 50),
        high=chance.randint(50, 90),
        more=_MORE * int(chance.expovariate(0.5)),
        verdict=chance.choice(("accept", "revise", "reject")),
    )


def start_demo(provider: ClaudeBatchProvider, large: int = LARGE) -> None:
    """Store the runs; the provider sends them."""

    def actor(name: str, model: str = "claude-haiku-4-5", **more: Any) -> ActorConfiguration:
        return ActorConfiguration(
            name=name,
            provider="anthropic",
            model=model,
            batch_processing=True,
            options={"max_tokens": 1024},
            **more,
        )

    provider.store(
        actor("support/classifier"),
        _tickets(),
        label="tickets of last week",
        max_requests=100,
        linger="1s",
    )
    librarian = actor(
        "research/librarian",
        "claude-sonnet-4-5",
        system_prompt="You find papers.",
        tools=[f"{__name__}:look_up"],
    )
    provider.store(
        librarian,
        [ActorRequest(f"Find a paper about {topic}.", key=topic) for topic in _TOPICS],
        label="reading list",
        linger="1s",
        turn_linger="1s",
    )
    provider.store(
        actor("legal/extractor", "claude-sonnet-4-5"),
        [f"List the parties of contract {number}." for number in range(40)],
        label="contracts",
        budget_usd="0.002",
        linger="1s",
    )
    provider.store(
        actor("papers/reviewer", system_prompt="You review abstracts. Be brief."),
        _abstracts(large),
        label="review of abstracts",
        max_requests=max(1, large // 40),
        parallel_batches=1,
        budget_usd=20,
        linger="1s",
    )


def _abstracts(count: int) -> Iterator[ActorRequest]:
    for number in range(count):
        topic = _TOPICS[number % len(_TOPICS)]
        failing = f"{_DIRECTIVE}errored:invalid_request_error]] " if number % 997 == 500 else ""
        text = f"{failing}Review abstract {number + 1}, which is about {topic}."
        yield ActorRequest(text, key=f"abstract-{number + 1:05d}")


def _tickets() -> Iterator[ActorRequest]:
    endings = {17: "errored:invalid_request_error", 91: "refused", 133: "errored:api_error"}
    for number in range(240):
        ending = f"{_DIRECTIVE}{endings[number]}]] " if number in endings else ""
        text = f"{ending}Classify ticket {number}: the parcel has not arrived."
        yield ActorRequest(text, key=f"ticket-{number}")
