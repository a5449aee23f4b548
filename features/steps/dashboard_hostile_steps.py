"""Steps for the dashboard's pages of hostile texts."""

from __future__ import annotations

import re
import time
from typing import Any

from behave import given, then
from behave.runner import Context
from html_pages import read_html
from sqlalchemy import update
from staging import make_provider, start_api, writing
from tables import rule

import claude_batch as cb
from claude_batch.ledger.schema import runs

_HOSTILE = "<script>alert('{0}')</script> <img src=x onerror=alert('{0}')> \x1b[2J \u202egnp.exe"

_ANSWER = (
    _HOSTILE.format("answer")
    + "\n\n# Heading\n\n[script](javascript:alert(1)) [data](data:text/html,x) [fine](https://a.test/)"
    + " <https://b.test/> ![picture](https://evil.test/who-reads.png)\n\n"
    + "<iframe src='https://evil.test'></iframe>\n\n<style>body { display: none }</style>\n\n"
    + "| a | b |\n|---|---|\n| <form action=x> | `<b>` |\n\n"
    + "[" * 3000
)

_LARGE = 10_000_000


def _answer(params: dict[str, Any]) -> Any:
    text = str(params["messages"][-1]["content"])
    if "large" in text:
        # As a block, because the sandbox cuts a text at `max_tokens`.
        return [{"type": "text", "text": "> * [x](y) `" * (_LARGE // 12)}]
    if "many" in text:
        return [{"type": "text", "text": "> * [x](y) `" * 3000}] * 100
    return {"content": "answer " + _ANSWER}


@given("a ledger with hostile texts in its prompts, answers, keys, labels and actors")
def _(context: Context) -> None:
    start_api(context, responder=_answer)
    make_provider(context)
    actor = context.actor.configuration.model_copy(update={"options": {"max_tokens": 64_000}})
    requests = [
        cb.ActorRequest("prompt " + _HOSTILE.format("prompt"), key=_HOSTILE.format("key")),
        cb.ActorRequest("large"),
        cb.ActorRequest("[[sandbox:errored:invalid_request_error]] \x9b31m \u2066"),
        cb.ActorRequest("many"),
    ]
    run = context.provider.store(actor, requests, label=_HOSTILE.format("label"))
    run.wait_sync()
    context.run_id = run.id
    # A name that no actor may have: who can write the ledger can write this too.
    with writing() as tx:
        tx.execute(update(runs).values(actor=f"../{_HOSTILE.format('actor')}"))
    context.dashboard_runs = {"hostile": run}


@then("no page of the dashboard has an element or a character of the hostile texts")
def _(context: Context) -> None:
    for path in context.dashboard_paths:
        response = context.browser.get(path)
        if not response.headers["content-type"].startswith("text/html"):
            continue
        found = read_html(response.text)
        names = {tag for tag, _ in found.tags}
        assert not names & {"img", "iframe", "style", "b"}, (path, names)
        assert all(
            given.get("src", "").startswith("/") for tag, given in found.tags if tag == "script"
        )
        steering = re.findall(
            "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", response.text
        )
        assert not steering, (path, steering)


def _request_page(context: Context, number: int) -> str:
    return f"/runs/{context.dashboard_runs['hostile'].id}/requests/{number}"


@rule("the Markdown of answers has links and elements")
def _(context: Context, request: int) -> dict[str, Any]:
    """A picture's address is a link like any other: it is opened only by a person."""
    body = context.browser.get(_request_page(context, request)).text
    answer = body.partition('<div class="markdown">')[2].partition("</section>")[0]
    links = re.findall(r'<a href="([^"]*)"([^>]*)>', answer)
    assert all('rel="noopener noreferrer nofollow"' in rest for _, rest in links), links
    return {
        "links": [link for link, _ in links],
        "elements": sorted(set(re.findall(r"<([a-z0-9]+)", answer))),
    }


@then(
    "the page of request {number:d} on the dashboard has at most {kilobytes:d} KB and takes at "
    "most {times:d} times the CPU of that of request {other:d}"
)
def _(context: Context, number: int, kilobytes: int, times: int, other: int) -> None:
    body, large = _drawn(context, number)
    _, small = _drawn(context, other)
    assert len(body) <= 1000 * kilobytes, len(body)
    assert "more characters are not shown" in body
    assert large <= times * small, (large, small)


def _drawn(context: Context, number: int) -> tuple[str, float]:
    """The page of a request, and the seconds of CPU that it takes: the least of three."""
    taken: list[float] = []
    body = ""
    for again in range(3):
        began = time.process_time()
        # Another address each time, so that the page is drawn again.
        body = context.browser.get(f"{_request_page(context, number)}?again={again}").text
        taken.append(time.process_time() - began)
    return body, min(taken)
