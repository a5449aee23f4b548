"""Photograph the dashboard for its page in the docs: `nox -s screenshots`.

A sandbox answers the runs of `claude-batch dashboard --sandbox`, with the same answers each time.
Every page is photographed at two widths and in both themes, with the machine's Chromium.
"""

from __future__ import annotations

import base64
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "features"))

from browsers import THEMES, WIDTHS, browser, window  # noqa: E402
from playwright.sync_api import Page  # noqa: E402

import claude_batch as cb  # noqa: E402
from claude_batch.dashboard import DashboardSettings  # noqa: E402
from claude_batch.dashboard.dashboard_server import DashboardServer  # noqa: E402
from claude_batch.dashboard.demo_runs import demo_answer, start_demo  # noqa: E402
from claude_batch.sandbox import SandboxServer, SandboxSettings  # noqa: E402

FOLDER = ROOT / "docs/pictures/dashboard"
LARGE = 10_000
SHOWN = 0.6
"""The share of the large run that has ended in the pictures."""
MOST_BYTES = 2_000_000


def paths(dashboard: DashboardServer) -> dict[str, str]:
    """The pages, by the names of their pictures."""
    runs = {each.label: each.run_id for each in dashboard.reader.snapshot.statuses}
    return {
        "overview": "/",
        "run": f"/runs/{runs['review of abstracts']}",
        "request": f"/runs/{runs['reading list']}/requests/1",
        "actors": "/actors",
        "actor": "/actors/papers%2Freviewer",
        "costs": "/costs",
        "ledger": "/ledger",
    }


def photograph(page: Page, target: Path) -> None:
    """Write a small picture of what the window shows."""
    session = page.context.new_cdp_session(page)
    shot = session.send("Page.captureScreenshot", {"format": "webp", "quality": 60})
    target.write_bytes(base64.b64decode(shot["data"]))


def main() -> None:
    """Replace the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLAUDE_BATCH_STATE_DIR"] = folder
        settings = SandboxSettings(latency=1, uses_tools=True, responder=demo_answer, seed=1)
        with (
            SandboxServer(settings) as sandbox,
            cb.ClaudeBatchProvider(
                ledger=f"{folder}/ledger.db",
                base_url=sandbox.url,
                api_key="sk-sandbox",
                poll_interval=0.5,
            ) as provider,
        ):
            start_demo(provider, LARGE)
            (large,) = (
                run.id
                for run in provider.outstanding()
                if provider.open_run(run.id).status().total == LARGE
            )
            run = provider.open_run(large)
            while (
                sum(run.status().counts.get(s, 0) for s in cb.RequestState if s.is_final)
                < SHOWN * LARGE
            ):
                time.sleep(0.2)
        # Nothing drives the ledger any more, so that all pictures show the same moment.
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        with (
            DashboardServer(f"{folder}/ledger.db", DashboardSettings(port=0)) as dashboard,
            browser() as opened,
        ):
            while not dashboard.reader.snapshot.added_up:
                time.sleep(0.1)
            for name, path in paths(dashboard).items():
                for width in WIDTHS:
                    for theme in THEMES:
                        with window(opened, width, theme) as page:
                            page.goto(dashboard.url + path)
                            page.locator("#live .words:text-is('live')").wait_for()
                            photograph(page, FOLDER / f"{name}-{width}-{theme}.webp")
    whole = sum(picture.stat().st_size for picture in FOLDER.iterdir())
    print(f"{len(list(FOLDER.iterdir()))} pictures, {whole / 1000:.0f} kB")
    assert whole < MOST_BYTES, "the pictures are too large for the repository"


if __name__ == "__main__":
    main()
