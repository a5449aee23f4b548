"""Steps that check the units of deploy/systemd, and start their commands without systemd."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import httpx2
from behave import given, then, when
from behave.runner import Context
from page_code_steps import known_variables, parse_problems
from pages import ROOT, page
from staging import KEY, until
from tables import rule

from claude_batch.cli.user_messages import Exit

FOLDER = ROOT / "deploy/systemd"
PROGRAM = "/usr/local/lib/claude-batch/bin/claude-batch"
OURS = str(Path(sys.executable).parent / "claude-batch")
CLEAN = {"SIGHUP", "SIGINT", "SIGPIPE", "SIGTERM"}
"""Signals by which a service may end without a failure, as systemd.service(5) says."""

RESTRICTIONS = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "StateDirectory": "claude-batch",
    "CapabilityBoundingSet": "",
    "SystemCallFilter": "@system-service",
    "UMask": "0077",
}


def options(text: str) -> dict[str, list[str]]:
    """The options of a unit, whatever their section, with their values."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        if line and not line.startswith(("#", "[")):
            option, _, value = line.partition("=")
            found[option].append(value)
    return found


def source(name: str) -> str:
    return (FOLDER / f"claude-batch-{name}.service").read_text("utf-8")


def service(name: str) -> dict[str, list[str]]:
    return options(source(name))


# Files


@then("systemd-analyze finds no fault in the units, and an exposure of at most {most:f}")
def _(context: Context, most: float) -> None:
    if shutil.which("systemd-analyze") is None:
        context.scenario.skip("this machine has no systemd-analyze")
        return
    folder = Path(tempfile.mkdtemp(dir=context.tmp))
    for path in (*FOLDER.glob("*.service"), *FOLDER.glob("*.timer")):
        text = path.read_text("utf-8")
        (folder / path.name).write_text(text.replace(PROGRAM, OURS), "utf-8")
    units = sorted(map(str, folder.iterdir()))
    # What it does not know, it ignores: a warning is a fault.
    assert _analyze("verify", *units) == ""
    for unit in folder.glob("*.service"):
        said = _analyze("security", "--offline=true", str(unit))
        found = re.search(r"exposure level for \S+: ([\d.]+)", said)
        assert found and float(found[1]) <= most, said


def _analyze(*words: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def problems(text: str) -> Iterator[str]:
    found = options(text)
    program, *words = shlex.split(found["ExecStart"][0])
    if program != PROGRAM:
        yield f"it starts {program}"
    yield from parse_problems(words)
    for option, value in RESTRICTIONS.items():
        if found[option] != [value]:
            yield f"{option} is {', '.join(found[option]) or 'not set'}"
    [path] = found["EnvironmentFile"]
    secret = _variables(FOLDER / Path(path).name)
    plain = {each for line in found["Environment"] for each in shlex.split(line)}
    named = {each.partition("=")[0] for each in plain} | set(secret)
    for name in sorted(named - known_variables()):
        yield f"nothing reads the variable {name}"
    if "ANTHROPIC_API_KEY" not in secret or re.search(r"sk-ant|postgresql://", text):
        yield "a secret is not in the file that only root reads"
    how = page("docs/how-to/cron.md").text
    if not re.search(rf"install -m 600 \S+{Path(path).name} ", how):
        yield f"no page says that only root reads {path}"


@rule("the services, after a change, have problems")
def _(service: str, this: str, becomes: str) -> dict[str, str]:
    text = source(service)
    assert this in text, this
    return {"problem": "\n".join(problems(text.replace(this, becomes)))}


def _variables(path: Path) -> dict[str, str]:
    lines = path.read_text("utf-8").splitlines()
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {name: value for name, _, value in pairs}


# Restarts


def starts_again(name: str, end: str) -> bool:
    """Whether systemd starts a service again, as systemd.service(5) says."""
    found = service(name)
    if end in found["RestartPreventExitStatus"][0].split():
        return False
    assert found["Restart"] == ["on-failure"]
    return end not in CLEAN | {"0"}


@rule("the services start again")
def _(context: Context, end: str) -> dict[str, bool]:
    assert {str(int(code)) for code in Exit} <= {row["end"] for row in context.table}
    return {name: starts_again(name, end) for name in context.table.headings[1:]}


# Commands


@given("the files that the units name, with {count:d} prompts")
def _(context: Context, count: int) -> None:
    for folder in ("etc", "srv", "state/claude-batch"):
        Path(folder).mkdir(parents=True)
    Path("etc/reviewer.yaml").write_text(Path("actor.yaml").read_text())
    prompts = (f'"prompt {number}"\n' for number in range(1, count + 1))
    Path("srv/prompts.jsonl").write_text("".join(prompts))


@when("the service {name} starts")
def _(context: Context, name: str) -> None:
    places = {
        PROGRAM: OURS,
        "%S": str(Path("state").absolute()),
        "/etc/claude-batch": str(Path("etc").absolute()),
        "/srv/reviews": str(Path("srv").absolute()),
        "--host 0.0.0.0": "--host 127.0.0.1 --port 0",
    }

    def here(text: str) -> str:
        for place, ours in places.items():
            text = text.replace(place, ours)
        return text

    found = service(name)
    pairs = (each for line in found["Environment"] for each in shlex.split(here(line)))
    secrets = _variables(FOLDER / Path(found["EnvironmentFile"][0]).name)
    assert "replace-me" in secrets["ANTHROPIC_API_KEY"]
    secrets["ANTHROPIC_API_KEY"] = KEY
    if "CLAUDE_BATCH_LEDGER" in secrets:
        secrets["CLAUDE_BATCH_LEDGER"] = context.url
    else:
        os.environ["CLAUDE_BATCH_LEDGER"] = str(Path("state/claude-batch/ledger.db").absolute())
    tests = {"ANTHROPIC_BASE_URL": context.api.url, "CLAUDE_BATCH_POLL_INTERVAL": "50ms"}
    context.service = name
    plain = dict(each.split("=", 1) for each in pairs)
    with Path(f"{name}.log").open("wb") as log:
        context.process = subprocess.Popen(
            shlex.split(here(found["ExecStart"][0])),
            env={"PATH": "/usr/bin:/bin", **plain, **secrets, **tests},
            cwd=here(found["WorkingDirectory"][0]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def end() -> None:
        context.process.kill()
        context.process.wait()

    context.add_cleanup(end)


@when("it has sent a batch, and is ended by {name}")
def _(context: Context, name: str) -> None:
    until(lambda: any(call["route"] == "create" for call in context.api.log()))
    context.process.send_signal(signal.Signals[name])


@when("it is ended by {name}")
def _(context: Context, name: str) -> None:
    context.process.send_signal(signal.Signals[name])


@then('it answers a call of "{host}" with the new token, and refuses one of "{other}"')
def _(context: Context, host: str, other: str) -> None:
    said = Path(f"{context.service}.log")
    until(lambda: "ANTHROPIC_BASE_URL" in said.read_text())
    found = re.search(r"listening on (\S+)", said.read_text())
    assert found, said.read_text()
    question = {"role": "user", "content": "Name a knot."}
    body = {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [question]}
    for name, status in ((host, 200), (other, 421)):
        headers = {"x-api-key": context.ended.stdout.strip(), "host": name}
        answer = httpx2.post(f"{found[1]}/v1/messages", json=body, headers=headers, timeout=60)
        assert answer.status_code == status, answer.text


@then("it ends with {code:d}")
def _(context: Context, code: int) -> None:
    said = Path(f"{context.service}.log")
    assert context.process.wait(60) == code, said.read_text()
    assert "Traceback" not in said.read_text()


@then("it starts again")
def _(context: Context) -> None:
    assert starts_again(context.service, _end_of(context.process))


@then("it does not start again")
def _(context: Context) -> None:
    assert not starts_again(context.service, _end_of(context.process))


def _end_of(process: subprocess.Popen[bytes]) -> str:
    code = process.wait(60)
    return str(code) if code >= 0 else signal.Signals(-code).name
