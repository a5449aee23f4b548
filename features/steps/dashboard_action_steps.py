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
    if response.status_code == 303:
        response = context.browser.get(response.headers["location"])
    context.page_that_follows = response


@then('the page that follows says "{words}"')
@then('the page that follows has the status {status:d} and says "{words}"')
def _(context: Context, words: str, status: int = 200) -> None:
    assert context.page_that_follows.status_code == status, context.page_that_follows
    found = read_html(context.page_that_follows.text)
    assert not found.faults, found.faults
    assert matches(found.text, path_of(context, words)), found.text
