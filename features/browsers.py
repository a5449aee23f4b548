"""A real browser without a window: the machine's Chromium, steered by Playwright.

Only scenarios tagged @browser and `.ci/screenshots.py` import it: `nox -s browser_tests` installs
what it needs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

WIDTHS = {1280: 900, 390: 844}
"""Widths of the pages that are looked at, with their heights: a laptop's, and a telephone's."""

THEMES = ("light", "dark")


def executable() -> str:
    """The path of the machine's Chromium."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    raise AssertionError("there is no Chromium on the PATH; Debian's package is `chromium`")


@contextmanager
def browser() -> Generator[Browser]:
    """A browser, without a profile. It opens only what a scenario opens."""
    # Chromium's own sandbox does not work as root, which continuous integration often is.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable(), args=options)
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def window(
    opened: Browser, width: int = 1280, theme: str = "light", *, scripts: bool = True
) -> Generator[Page]:
    """A page of a width and a theme, which fails at an error of a script or of the policy."""
    faults: list[str] = []
    context = opened.new_context(
        viewport={"width": width, "height": WIDTHS[width]},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
        java_script_enabled=scripts,
        locale="en-GB",
        timezone_id="UTC",
    )
    try:
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))

        def note(message: ConsoleMessage) -> None:
            # A page that does not exist is an error of the console too.
            if message.type == "error" and message.location["url"] != page.url:
                faults.append(message.text)

        page.on("console", note)
        yield page
        assert not faults, faults
    finally:
        context.close()
