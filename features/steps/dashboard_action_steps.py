"""Steps that send the forms of the dashboard's pages."""

from __future__ import annotations

from typing import Any

from behave import then, when
from behave.runner import Context
from dashboards import matches, path_of, send_form
from html_pages import read_html


@when('the form "{button}" of {path} is sent')
@when('the form "{button}" of {path} is sent with {fields:JsonObject}')
def _(context: Context, button: str, path: str, fields: dict[str, Any] | None = None) -> None:
    response = send_form(context, button, path, fields or {})
    assert response.status_code == 303, (response.status_code, response.text)
    context.page_that_follows = context.browser.get(response.headers["location"])


@then('the page that follows says "{words}"')
def _(context: Context, words: str) -> None:
    found = read_html(context.page_that_follows.text)
    assert not found.faults, found.faults
    assert matches(found.text, path_of(context, words)), found.text


@then('the form "{button}" of {path} is refused with "{words}"')
def _(context: Context, button: str, path: str, words: str) -> None:
    response = send_form(context, button, path, {})
    assert response.status_code == 400, (response.status_code, response.text)
    assert matches(read_html(response.text).text, words), response.text


@then("no page of the dashboard has a form that is sent")
def _(context: Context) -> None:
    run = next(iter(context.dashboard_runs.values()))
    for path in ("/", f"/runs/{run.id}", "/actors/tests%2Fasker", "/ledger"):
        forms = [
            given
            for tag, given in read_html(context.browser.get(path).text).tags
            if tag == "form" and given.get("method") != "get"
        ]
        assert not forms, (path, forms)
