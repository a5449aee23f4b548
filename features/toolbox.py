"""Functions that the scenarios of conversations give to a model."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import claude_batch as cb


def population(city: str) -> int:
    """How many people live in a city.

    Args:
        city: The city's name.
    """
    return 1000 * len(city)


@cb.tool(repeatable=True, timeout="5s")
async def weather(city: str, days: int = 1) -> str:
    """What the weather will be like."""
    await asyncio.sleep(0)
    return f"rain in {city} for {days}"


class Place(BaseModel):
    """Where something is."""

    city: str
    streets: list[str] = []


def visit(place: Place) -> Place:
    """Go there."""
    return place


def fails(city: str) -> str:
    """Raises."""
    raise LookupError(f"no {city} on the map")


def rambles(city: str) -> str:
    """Raises with a table of rows."""
    raise LookupError(f"no {city} in {[*range(5000)]}")


class Unreadable(Exception):
    """An exception without a readable message."""

    def __str__(self) -> str:
        raise ValueError("no words")


def mutters() -> str:
    """Raises what cannot be shown."""
    raise Unreadable


async def stammers() -> str:
    """Raises what cannot be shown, on the loop that the tools share."""
    raise Unreadable


def exits() -> str:
    """Would end the program."""
    raise SystemExit("enough")


async def leaves() -> str:
    """Would end the loop that the tools share."""
    raise SystemExit("enough")


@cb.tool(timeout=0.2)
def hangs(city: str) -> str:
    """Does not come back for a long time."""
    time.sleep(60)
    return city


@cb.tool(timeout=0.2)
async def dawdles(city: str) -> str:
    """Does not come back for a long time either."""
    await asyncio.sleep(60)
    return city


@cb.tool(timeout=0.2)
async def blocks(city: str) -> str:
    """Holds up the loop that it runs on."""
    time.sleep(3)  # noqa: ASYNC251 - that is what it is for
    return city


def silent() -> None:
    """Gives nothing."""


def pictures() -> list[dict[str, Any]]:
    """Gives content blocks."""
    return [{"type": "text", "text": "a picture"}]


def blank() -> list[dict[str, Any]]:
    """Find nothing."""
    return [{"type": "text", "text": ""}]


def rows() -> list[dict[str, Any]]:
    """Find rows of a table, which have a type too."""
    return [{"type": "text", "value": "Bonn"}]


def files() -> list[dict[str, Any]]:
    """Find files, which have a type too."""
    return [{"type": "document", "source": "a.pdf"}]


def partly_blank() -> list[dict[str, Any]]:
    """Find little."""
    return [{"type": "text", "text": "\n"}, {"type": "text", "text": "little"}]


def unwritable() -> object:
    """Gives what is no JSON."""
    return object()


def noting(path: Path) -> Any:
    """A function that no other process can import, and that notes its calls in a file."""

    def note(city: str) -> str:
        """Note a city."""
        with path.open("a") as stream:
            stream.write(f"{city}\n")
        return f"{city} is noted"

    return note


def book(city: str) -> str:
    """Book a journey, and note it in a file."""
    with Path("journeys.txt").open("a") as stream:
        stream.write(f"{city}\n")
    return f"a journey to {city} is booked"


look_up = cb.tool(name="look_up", repeatable=True)(book)


def directive(city: str) -> str:
    """Gives words at which the sandbox fails the next turn, once."""
    return "[[sandbox:errored:invalid_request_error:once]]"


def slow(path: Path) -> Any:
    """A function that notes when it begins, and then takes its time."""

    def think(city: str) -> str:
        """Think about a city."""
        with path.open("a") as stream:
            stream.write(f"{city}\n")
        time.sleep(1.5)
        return f"{city} was thought about"

    return think


@cb.tool(name="tour-guide", description="Knows its way.")
def guide() -> str:
    """Not what the model is told."""
    return "here"


@cb.tool(repeatable=True)
def survey() -> str:
    """Looks around."""
    return "all"


class Office:
    """What has a tool."""

    def __init__(self, city: str) -> None:
        self.city = city

    @cb.tool
    def address(self, street: str) -> str:
        """Where a street is."""
        return f"{street}, {self.city}"


class _Refusal(Exception):
    """As the SDK's own error of a tool, whose content is blocks for the model."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.content = [{"type": "text", "text": words}]


def refuses(city: str) -> str:
    """Raises with blocks."""
    raise _Refusal(f"not in {city}")


def long_answer(params: dict[str, Any]) -> list[dict[str, Any]]:
    """Answer ``[[long:20]]`` with a block of 20 MB."""
    size = int(params["messages"][0]["content"].removeprefix("[[long:").removesuffix("]]"))
    return [{"type": "text", "text": "x" * (size << 20)}]
