"""Steps of a real browser, which looks at the dashboard's pages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from behave import then
from behave.runner import Context
from dashboards import path_of
from staging import until

_SERIOUS = {"serious", "critical"}


def _url(context: Context, path: str) -> str:
    return str(context.browser.base_url).rstrip("/") + path_of(context, path)


@then('a browser follows the run "{label}" of {count} requests, and its page')
def _(context: Context, label: str, count: str) -> None:
    from browsers import browser, window

    with browser() as opened, window(opened) as page:
        page.goto(_url(context, "/"))
        row = page.locator(f"#runs tr:has-text('{label}')")
        row.wait_for()
        page.evaluate("window.wasHere = true")

        def ended() -> int:
            number, _, total = row.locator("td.num").first.inner_text().partition("of")
            assert total.strip() == count, total
            return int(number.replace(",", ""))

        first = ended()
        until(lambda: ended() > first)
        second = ended()
        until(lambda: ended() > second)
        assert page.evaluate("window.wasHere"), "the page was loaded again"
        row.get_by_role("link").click()
        page.locator("#live .words:text-is('live')").wait_for()
        page.locator("#plot-tokens canvas").wait_for()
        assert page.locator("#state svg.bar rect.good").count() == 1


@then("axe-core finds no serious fault, and nothing is wider than the window, on")
def _(context: Context) -> None:
    from browsers import THEMES, WIDTHS, browser, window

    axe = Path(os.environ["FEATURES_AXE"]).read_text("utf-8")
    found: list[Any] = []
    with browser() as opened:
        for width in WIDTHS:
            for theme in THEMES:
                for row in context.table:
                    with window(opened, width, theme, scripts=True) as page:
                        page.goto(_url(context, row["path"]))
                        page.evaluate(axe)
                        found += [
                            (width, theme, row["path"], each["id"], each["help"], node["html"])
                            for each in page.evaluate("axe.run()")["violations"]
                            if each["impact"] in _SERIOUS
                            for node in each["nodes"]
                        ]
                        wide = page.evaluate("document.documentElement.scrollWidth")
                        if wide > width:
                            found.append((width, theme, row["path"], "wider", wide))
    assert not found, "\n".join(map(str, found))


@then("a browser logs in with the token")
def _(context: Context) -> None:
    from browsers import browser, window

    with browser() as opened, window(opened) as page:
        page.goto(_url(context, "/"))
        page.get_by_label("Token of this dashboard").fill(context.dashboard_token)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Overview").wait_for()


@then("a person with a keyboard sets the budget of {run} to ${usd}, {scripts} scripts")
def _(context: Context, run: str, usd: str, scripts: str) -> None:
    from browsers import browser, window

    with browser() as opened, window(opened, scripts=scripts == "with") as page:
        page.goto(_url(context, f"/runs/{run}"))

        def press_tab_until(name: str) -> None:
            for _n in range(60):
                page.keyboard.press("Tab")
                if page.locator(
                    f":focus:has-text('{name}'), label:has-text('{name}') :focus"
                ).count():
                    return
            raise AssertionError(f"the keyboard does not reach {name!r}")

        press_tab_until("Change the budget")
        page.keyboard.press("Enter")
        press_tab_until("Dollars")
        page.keyboard.type(usd)
        press_tab_until("Set the budget")
        page.keyboard.press("Enter")
        page.get_by_text(f"the budget is now ${usd}").wait_for()
        assert page.get_by_text(f"${usd}", exact=True).count() == 1
