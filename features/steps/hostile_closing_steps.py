"""Steps of a command that is closed while a server does not end its answer."""

from __future__ import annotations

from collections.abc import Iterator

from behave import given, then
from behave.runner import Context
from hostile_server import Answer


@given("it answers the first {count:d} live calls after {seconds:d} s")
def _(context: Context, count: int, seconds: int) -> None:
    left = [count]

    def trick(answer: Answer) -> None:
        if answer.kind != "live" or not left[0]:
            return
        left[0] -= 1

        def late() -> Iterator[bytes]:
            context.hostile.stopping.wait(seconds)
            yield b""

        answer.before = late

    context.hostile.trick = trick


@then("it ended within {seconds:d} s")
def _(context: Context, seconds: int) -> None:
    assert context.took < seconds, context.took


@then("the API has billed three live calls, none twice")
def _(context: Context) -> None:
    posts = [call for call in context.api.log() if call["path"] == "/v1/messages"]
    assert len(posts) == 3, posts
    lines = context.out.read_text().splitlines()
    assert len(lines) == 3 and all('"ok":true' in line for line in lines), lines
