"""The dashboard's pages and forms, as a browser without scripts has them."""

from __future__ import annotations

import html
import json
import re
import time
from fnmatch import fnmatchcase
from typing import Any

from behave.runner import Context
from html_pages import read_html


def path_of(context: Context, text: str) -> str:
    """A text with `<run>`, or `<name>` of a run that the scenario named, as the run's id."""
    runs = dict(getattr(context, "dashboard_runs", {}))
    if "run" in context:
        runs.setdefault("run", context.run)
    for name, run in runs.items():
        text = text.replace(f"<{name}>", run.id)
    return text


def page_of(context: Context, path: str, **more: Any) -> Any:
    return context.browser.get(path_of(context, path), **more)


def matches(text: str, words: str) -> bool:
    """Whether a text has these words; `…` stands for any others."""
    pattern = words.replace("[", "[[]").replace("…", "*")
    return fnmatchcase(text, f"*{pattern}*")


def until_said(context: Context, path: str, words: str) -> None:
    """Wait until a page says something: it follows the ledger, a moment later."""
    said = ""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        response = page_of(context, path)
        assert response.status_code == 200, (path, response.status_code, response.text)
        said = read_html(response.text).text
        if matches(said, path_of(context, words)):
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} does not say {words!r}:\n{said}")


def form_of(context: Context, fields: str) -> dict[str, str]:
    """The fields of a form, from JSON with `<run>`, `<token>` of the pages' forms and `<large>`."""
    given: dict[str, str] = json.loads(path_of(context, fields))
    known = {"<large>": "x" * 20_000}
    if "<token>" in fields:
        headers = {"authorization": f"Bearer {context.dashboard_token}"}
        page = context.browser.get("/", headers=headers).text
        known["<token>"] = re.findall(r'name="form_token" value="([^"]+)"', page)[0]
    return {name: known.get(value, value) for name, value in given.items()}


def send_form(context: Context, button: str, path: str, fields: dict[str, str]) -> Any:
    """Send a form as a browser does: what its page filled in, these fields, and its origin."""
    page = page_of(context, path)
    found = re.findall(r'<form method="post" action="([^"]+)">(.*?)</form>', page.text, re.S)
    [(action, inner)] = [each for each in found if f"<button>{button}</button>" in each[1]]
    hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', inner)
    filled = {html.unescape(name): html.unescape(value) for name, value in hidden}
    chosen = re.search(r'<select name="([^"]+)"><option value="([^"]*)">', inner)
    if chosen is not None:
        filled[chosen[1]] = html.unescape(chosen[2])
    unknown = [name for name in fields if f'name="{name}"' not in inner]
    assert not unknown, (unknown, inner)
    headers = {"origin": context.dashboard.url, "sec-fetch-site": "same-origin"}
    return context.browser.post(action, data={**filled, **fields}, headers=headers)
