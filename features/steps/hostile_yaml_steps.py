"""Steps about YAML files that mean harm, read by processes whose time and memory are bounded."""

from __future__ import annotations

import subprocess
from pathlib import Path

import programs
from behave import given, when
from behave.runner import Context
from cli_steps import keep_end

CPU_SECONDS = 30
"""Processor time after which the system kills a command: refusing takes a second or two."""

MEMORY = 2 << 30


_BOUND = f"""
import resource
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS}))
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
"""


def run_bounded(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program whose processor time and memory are bounded."""
    return programs.run(_BOUND + script, *words, timeout=240)


def _chain(length: int, link: str) -> str:
    """Anchors a0, a1, …, each of which holds the one before it as ``link`` says."""
    lines = (f"a{n}: &a{n} {link.replace('BEFORE', f'*a{n - 1}')}" for n in range(1, length + 1))
    return "\n".join(("a0: &a0 {x: 1}", *lines))


def hostile_yaml(what: str) -> str:
    """Lines, from the third line of a file on."""
    size = next((int(word) for word in what.split() if word.isdecimal()), 0)
    if what.startswith("merge keys that double"):
        return _chain(size, "{<<: [BEFORE, BEFORE]}")
    if what.startswith("aliases that double"):
        return _chain(size, "[BEFORE, BEFORE]")
    if what.startswith("aliases that are nested"):
        return _chain(size, "[BEFORE]")
    if what.startswith("merge keys that are nested"):
        return _chain(size, "{<<: [BEFORE]}")
    if what.startswith("lists"):
        return "x: " + "[" * size + "]" * size
    if what.startswith("mappings"):
        return "\n".join(f"{' ' * n}x:" for n in range(size))
    return {
        f"{size} sexagesimal places": "x: 1" + ":1" * size,
        f"{size} sexagesimal places, by a tag": "x: !!int '1" + ":1" * size + "'",
        f"{size} sexagesimal places of a float": "x: 1" + ":1" * size + ".5",
        f"a number of {size} digits": "x: " + "1" * size,
        f"a hexadecimal number of {size} digits": "x: 0x" + "f" * size,
        f"a price of {size} digits in JSON": '{"claude-haiku-4-5":\n{"input": %s}}' % ("1" * size),
        f"a price of {size} digits": "claude-haiku-4-5:\n  input: " + "1" * size,
    }[what]


@given("a hostile {kind} file with {what}")
def _(context: Context, kind: str, what: str) -> None:
    name, head = {
        "actor": ("hostile.yaml", "# line 1\nmodel: claude-haiku-4-5\n"),
        "price": ("prices.yaml", "# line 1\n# line 2\n"),
        "price (JSON)": ("prices.json", "\n\n"),
    }[kind]
    context.execute_steps("Given a command's folder")
    Path(name).write_text(f"{head}{hostile_yaml(what)}\n", "utf-8")
    Path("asks.jsonl").write_text('"one"\n')


@when("a bounded command runs: {words}")
def _(context: Context, words: str) -> None:
    done = run_bounded("from claude_batch.cli import main; main()", *words.split())
    keep_end(context, done.returncode, done.stdout, done.stderr)
