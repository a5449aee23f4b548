"""Steps for the dashboard: a real server over a real ledger, read over real HTTP."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from fnmatch import fnmatchcase
from typing import Any
from unittest import mock
from urllib.parse import urljoin

import httpx2
from behave import given, then, when
from behave.runner import Context
from dashboards import form_of, matches, page_of, path_of, until_said
from html_pages import read_html
from page_code_steps import ROOT
from staging import make_provider, memory_of, start_api, until

import claude_batch as cb
from claude_batch.dashboard import DashboardSettings, ledger_reader
from claude_batch.dashboard.dashboard_server import DashboardServer
from claude_batch.providers.reruns import unknown_sendings


@given("a ledger with runs for the dashboard")
@given("a ledger with runs for the dashboard, and {settings:JsonObject}")
def _(context: Context, settings: dict[str, Any] | None = None) -> None:
    """Each row is a run that has ended, with its prompts; `<many>` are 120, `<3000>` are 3,000."""
    start_api(context, uses_tools=True)
    make_provider(context, **(settings or {}))
    context.dashboard_runs = {}
    for row in context.table or ():
        count = {"<many>": 120, "<3000>": 3000}.get(row["prompts"], 0)
        prompts = [f"Name knot {n}." for n in range(count)]
        requests = [
            cb.ActorRequest(text, key=f"{row['run']}-{number}")
            for number, text in enumerate(prompts or json.loads(row["prompts"]), 1)
        ]
        run = context.provider.store(context.actor.configuration, requests, label=row["run"])
        run.wait_sync()
        context.dashboard_runs[row["run"]] = run


@given("a dashboard of this ledger")
@given("a dashboard of this ledger with {settings:JsonObject}")
def _(context: Context, settings: dict[str, Any] | None = None) -> None:
    given_settings = dict(settings or {})
    hosts = frozenset(given_settings.pop("allowed_hosts", ()))
    all_ = DashboardSettings(**{"port": 0, "allowed_hosts": hosts, **given_settings})
    context.dashboard = DashboardServer(os.environ["CLAUDE_BATCH_LEDGER"], all_)
    context.dashboard_token = all_.token
    context.dashboard.start()
    context.add_cleanup(context.dashboard.stop)
    context.browser = httpx2.Client(base_url=context.dashboard.url, timeout=30)
    context.add_cleanup(context.browser.close)
    # Until everything is added up.
    until(lambda: context.dashboard.reader.snapshot.added_up)


@when("another run is made in a dashboard's ledger")
def _(context: Context) -> None:
    context.provider.close()
    make_provider(context)
    context.provider.store(context.actor.configuration, ["Name a splice."]).wait_sync()


@then("the dashboard's pages say")
def _(context: Context) -> None:
    for row in context.table:
        until_said(context, row["path"], row["words"])


@then("no page of the dashboard says")
def _(context: Context) -> None:
    for row in context.table:
        said = read_html(page_of(context, row["path"]).text).text
        assert not matches(said, row["words"]), said


@then("the dashboard's responses are")
def _(context: Context) -> None:
    """The column `gives` is of headers, of which none is of access control, or has the token."""
    for row in context.table:
        port = context.dashboard.url.rpartition(":")[2]
        headers = json.loads((row.get("headers") or "{}").replace("<port>", port))
        # As bytes: clients refuse to send some of them.
        headers = {name: value.encode("latin-1") for name, value in headers.items()}
        method = row.get("method") or "GET"
        form = form_of(context, row.get("form") or "{}")
        place = f"{method} {row['path']} {headers} {row.get('form')}"
        with context.browser.stream(
            method, path_of(context, row["path"]), headers=headers, data=form or None
        ) as response:
            # Events have no end.
            text = "" if "event-stream" in response.headers.get("content-type", "") else None
            if text is None:
                response.read()
                text = response.text
        assert response.status_code == int(row["status"]), (place, text)
        if row.get("words"):
            assert matches(text, path_of(context, row["words"])), (place, text)
        if row.get("megabytes"):
            assert len(text) // 1_000_000 == int(row["megabytes"]), (place, len(text))
        for name, value in json.loads(row.get("gives") or "{}").items():
            assert fnmatchcase(response.headers[name], value.replace("…", "*")), response.headers
        assert "access-control" not in str(response.headers), (place, response.headers)
        token = getattr(context, "dashboard_token", None)
        assert not token or token not in str(response.headers), (place, response.headers)


@then("every page that the dashboard links to is valid HTML with labels")
def _(context: Context) -> None:
    left, seen = ["/"], set[str]()
    while left:
        path = left.pop()
        if path in seen or len(seen) > 60:
            continue
        seen.add(path)
        response = page_of(context, path)
        assert response.status_code == 200, (path, response.status_code)
        if not response.headers["content-type"].startswith("text/html"):
            continue
        found = read_html(response.text)
        assert not found.faults, f"{path}: {found.faults}"
        links = found.values("href") + found.values("src")
        followed = (urljoin(path, link).partition("#")[0] for link in links)
        left += [link for link in followed if link.startswith("/")]
    context.dashboard_paths = seen
    assert len(seen) > 6, seen


@then("an open page hears of a run that is added")
def _(context: Context) -> None:
    heard: list[str] = []
    version = context.dashboard.reader.version
    ready = threading.Event()

    def listen() -> None:
        with context.browser.stream("GET", f"/events?since={version}", timeout=20) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                ready.set()
                if line.startswith("data: "):
                    heard.append(line)
                    return

    listener = threading.Thread(target=listen)
    listener.start()
    assert ready.wait(10)
    context.provider.store(context.actor.configuration, ["Another."], label="another").wait_sync()
    listener.join(20)
    assert heard and heard[0] != f"data: {version}", (heard, version)


@when("a run is added, and {path} is drawn before its update has ended")
def _(context: Context, path: str) -> None:
    """The page shows what was before, so it has that version: it is drawn again after the next."""
    reader, begun, drawn = context.dashboard.reader, threading.Event(), threading.Event()

    def held(ledger: Any) -> Any:
        begun.set()
        assert drawn.wait(20)
        return unknown_sendings(ledger)

    with mock.patch.object(ledger_reader, "unknown_sendings", held):
        context.provider.store(context.actor.configuration, [f"Of {path}."], label="another")
        assert begun.wait(20)
        before = reader.snapshot.version
        said = page_of(context, path).text
        drawn.set()
    assert f'data-version="{before}"' in said, (before, said[:2000])


@then("the dashboard has written nothing to the ledger")
def _(context: Context) -> None:
    assert context.dashboard.reader.ledger.commits == 0


@then("a dashboard for other machines without a token is refused with {words}")
def _(context: Context, words: str) -> None:
    settings = DashboardSettings(**json.loads(context.text))
    try:
        with DashboardServer(os.environ["CLAUDE_BATCH_LEDGER"], settings):
            raise AssertionError("it was served")
    except cb.ActorConfigurationError as error:
        assert matches(str(error), json.loads(words)), error


@then("the dashboard's libraries are those of the versions that it names")
def _(context: Context) -> None:
    folder = ROOT / "src/claude_batch/dashboard/static/vendor"
    record = json.loads((folder / "versions.json").read_text("utf-8"))
    assert record.keys() == {"htmx.org", "uplot"}
    files = {"versions.json"}
    for package in record.values():
        assert package["license"] in {"0BSD", "MIT"}
        files |= {package["license_file"], *package["sha256"]}
        for name, expected in package["sha256"].items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == expected, name
    assert files == {path.name for path in folder.iterdir()}


@when('"claude-batch dashboard {words}" is started')
def _(context: Context, words: str) -> None:
    command = [sys.executable, "-m", "claude_batch", "dashboard", *words.split()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    context.add_cleanup(process.kill)
    context.dashboard_process = process
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"dashboard listening on (http://127\.0\.0\.1:\d+)\n", line)
    assert found, (line, process.stderr and process.poll() is not None and process.stderr.read())
    context.browser = httpx2.Client(base_url=found[1], timeout=30)
    context.add_cleanup(context.browser.close)


@then(
    'after {count:d} downloads of "{run}" that a browser breaks off, it has taken at most {mib:d} '
    "MiB more"
)
def _(context: Context, count: int, run: str, mib: int) -> None:
    path = f"/runs/{context.dashboard_runs[run].id}/results.jsonl"
    before = memory_of(context.dashboard_process)
    for _ in range(count):
        with context.browser.stream("GET", path) as response:
            next(response.iter_bytes(1000))
    grown = (memory_of(context.dashboard_process) - before) / 2**20
    assert grown <= mib, f"{grown} MiB"


@then("it ends at SIGINT with {code:d}, while a page is open")
def _(context: Context, code: int) -> None:
    with context.browser.stream("GET", "/events?since=0") as response:
        next(response.iter_lines())
        context.dashboard_process.send_signal(signal.SIGINT)
        assert context.dashboard_process.wait(20) == code, context.dashboard_process.stderr.read()
