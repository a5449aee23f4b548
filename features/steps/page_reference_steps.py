"""Steps that compare the reference and the explanations with the code."""

from __future__ import annotations

import csv
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import click
import msgspec
from behave import then
from behave.runner import Context
from pages import AGREEMENTS, ROOT, agreement, page
from tables import rule

import claude_batch as cb
from claude_batch.actor import documents
from claude_batch.actor.configuration import LONGEST_ACTOR_NAME
from claude_batch.cli import server_commands
from claude_batch.cli.app import group
from claude_batch.core import errors
from claude_batch.core import events as event_module
from claude_batch.core.events import Event
from claude_batch.core.files import MOST_BYTES
from claude_batch.core.limited import MOST_MEMORY
from claude_batch.core.quantities import parse_duration
from claude_batch.core.settings import ENVIRONMENT_PREFIX, LedgerSettings
from claude_batch.dashboard import SHORTEST_TOKEN
from claude_batch.gateway import LARGEST_BODIES, LARGEST_BODY
from claude_batch.gateway.asgi import PATIENCE, SLOWEST
from claude_batch.gateway.http_protocol import (
    BODY_LINGER,
    LARGEST_HEAD,
    LARGEST_URL,
    MOST_LINES,
    MOST_PIPELINED,
)
from claude_batch.integrations.http_messages import LONGEST_KEY
from claude_batch.ledger import single_calls
from claude_batch.ledger.backends.backend import Worker
from claude_batch.ledger.backends.postgres import OLDEST_SERVER
from claude_batch.ledger.stored_results import MOST_STRANGE_BYTES, MOST_STRANGE_LINES
from claude_batch.lifecycle.observers import QUEUE
from claude_batch.lifecycle.tool_runner import ASKING_AT_ONCE, TOOLS_AT_ONCE
from claude_batch.providers.keywords import SettingKeywords
from claude_batch.providers.middleware_runner import WORKERS
from claude_batch.providers.preflight import MOST_SHAPES
from claude_batch.providers.status import NEWEST_RUNS
from claude_batch.wire import limits
from claude_batch.wire.batches_client import LONGEST_LINE
from claude_batch.wire.connection import MOST_BODY_BYTES
from claude_batch.wire.encoding import MAX_SENDING
from claude_batch.wire.media import MAX_IMAGE_SIDE

SETTINGS = page("docs/reference/settings.md")
COMMANDS = page("docs/reference/command-line.md")
PYTHON = page("docs/reference/python.md")
EVENTS = page("docs/reference/events.md")
STATES = page("docs/reference/states.md")
OUTPUT = page("docs/reference/input-output.md")
LIMIT_PAGE = page("docs/reference/limits-and-retention.md")
JSON_OUTPUT = page("docs/reference/json-output.md")
ARCHITECTURE = page("docs/explanation/architecture.md")


def codes(text: str) -> set[str]:
    """What stands in inline code."""
    return set(re.findall(r"`([^`]+)`", text))


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of its tables, headings and rules included."""
    lines = re.findall(r"^\| ?(.*?) ?\|$", text, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


# Settings


def settings_table() -> dict[str, tuple[str, str]]:
    """Environment variable → flag ("" for none) and default, as the page's tables have them."""
    found = re.findall(
        rf"^\| (?:`(--[\w-]+)` )?\| `({ENVIRONMENT_PREFIX}\w+)` \| ([^|]*?) \|",
        SETTINGS.text,
        re.MULTILINE,
    )
    assert found
    return {variable: (flag, default) for flag, variable, default in found}


def defaults() -> dict[str, Any]:
    """The settings that have a default of their own, by their names in Python."""
    mode, ledger = cb.BatchProcessingMode(), LedgerSettings()
    return {
        **dict(mode),
        **{field.name: getattr(ledger, field.name) for field in msgspec.structs.fields(ledger)},
    }


@then("the pages agree with the code about")
def agree(context: Context) -> None:
    for row in context.table:
        AGREEMENTS[row["subject"]]()


@agreement("the environment variables that the code reads")
def environment_variables() -> None:
    package = Path(str(cb.__file__)).parent
    sources = "\n".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    read = set(re.findall(r'from_environment\("(\w+)"', sources)) | set(defaults())
    assert set(settings_table()) == {ENVIRONMENT_PREFIX + name.upper() for name in read}
    others = codes(SETTINGS.section("Other variables"))
    flags = {str(each.envvar) for each in parameters(group) if each.envvar}
    assert flags <= set(settings_table()) | others, flags - set(settings_table()) - others


@agreement("the defaults of settings")
def settings_defaults() -> None:
    table = settings_table()
    for name, value in defaults().items():
        _, shown = table[ENVIRONMENT_PREFIX + name.upper()]
        read: Any = {"true": True, "false": False}.get(shown, shown)
        if value is None:
            read = shown or None
        elif not isinstance(value, str | bool):
            read = parse_duration(shown)
        assert read == value, f"{name}: the page says {shown}, the code {value}"


@agreement("the keywords of settings in Python")
def keywords() -> None:
    known = {
        *inspect.signature(cb.ClaudeBatchProvider).parameters,
        *SettingKeywords.__annotations__,
    }
    names = {variable.removeprefix(ENVIRONMENT_PREFIX).lower() for variable in settings_table()}
    assert names - known == {"state_dir"}, names - known


@agreement("the flags of settings")
def flags() -> None:
    commands = (group.commands[name] for name in ("run", "gateway"))
    params = [each for command in commands for each in command.params]
    taken = {flag for each in params for flag in flags_of(each)}
    for variable, (flag, _) in settings_table().items():
        name = "--" + variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "-")
        # A flag shows its unit by itself: `--budget USD`.
        name = name.removesuffix("-usd")
        assert flag == (name if name in taken else ""), f"{variable} has the flag {name}"


# Commands


def flags_of(parameter: click.Parameter) -> list[str]:
    """The flags of an option; none of an argument."""
    if not isinstance(parameter, click.Option):
        return []
    return [*parameter.opts, *parameter.secondary_opts]


def commands(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """The commands that do something, each with its full name."""
    if isinstance(command, click.Group):
        for word, each in command.commands.items():
            yield from commands(each, f"{name} {word}".strip())
    else:
        yield name, command


def parameters(command: click.Command) -> Iterator[click.Parameter]:
    """Those of all commands."""
    for _, each in commands(command):
        yield from each.params


@agreement("the commands, each with its own flags")
def command_sections() -> None:
    titles = re.findall(r"^## (.+)$", COMMANDS.text, re.MULTILINE)
    assert titles == [name for name, _ in commands(group)], titles
    shared = {flag for flag, _ in settings_table().values()} - {""}
    shared |= {"--no-preflight", "--no-prime", "--no-reuse", "--no-dedupe", "--shared-workspace"}
    of_run = set(codes(COMMANDS.section("run")))
    for name, command in commands(group):
        text = COMMANDS.section(name)
        shown = {code for code in codes(text) if re.fullmatch(r"-o|--[a-z-]+", code)}
        taken = {flag for each in command.params for flag in flags_of(each)}
        own = taken - shared
        if name in ("submit", "estimate"):  # their sections refer to that of `run`
            own -= of_run
            shown -= {"--sandbox"}
        assert own <= shown, f"{name}: not described: {own - shown}"
        assert shown <= taken | {"--model"}, f"{name}: no such flag: {shown - taken}"
        assert f"`claude-batch {name}" in text, f"{name}: without its usage"


@agreement("the exit codes")
def exit_codes() -> None:
    text = page("docs/reference/exit-codes.md").text
    words = group.get_help(click.Context(group, info_name="claude-batch", **group.context_settings))
    told = words[words.lower().index("exit code") :]
    listed = " ".join(told.split())
    meanings = re.findall(r"^\| (\d \| .+) \|$", text, re.MULTILINE)
    assert [meaning[0] for meaning in meanings] == list("01234"), meanings
    for meaning in meanings:
        assert meaning.replace(" | ", " ") in listed, (meaning, listed)
    highest = "If several apply, the highest counts."
    assert highest in text and highest in listed, listed


# Actors


@agreement("each key of batch_processing, with its default")
def yaml_defaults() -> None:
    blocks = page("docs/reference/actor-yaml.md").blocks
    mode = cb.ActorLoader.loads(blocks[0].code).batch_mode
    assert mode is not None
    assert mode.model_fields_set == set(cb.BatchProcessingMode.model_fields)
    assert mode == cb.BatchProcessingMode()


# Python


@agreement("everything that claude_batch offers")
def public_names() -> None:
    shown = codes("\n".join(cells[0] for cells in rows(PYTHON.text)))
    offered = set(cb.__all__) - {"__version__"}
    assert offered <= shown, offered - shown
    named = {name for name in shown if re.fullmatch(r"[A-Z]\w+", name)}
    assert named <= offered, named - offered


@agreement("the errors, each below the one that it is a kind of")
def error_order() -> None:
    listed = re.findall(r"^\| `(\w+Error)` \|", PYTHON.section("Errors"), re.MULTILINE)
    offered = {name for name in cb.__all__ if name.endswith("Error")}
    assert set(listed) == offered, set(listed) ^ offered
    for place, name in enumerate(listed):
        parents = {parent.__name__ for parent in getattr(cb, name).__mro__[1:]} & offered
        assert parents <= set(listed[:place]), f"{name} stands before {parents}"


@agreement("the events and their fields")
def event_fields() -> None:
    kinds = [getattr(event_module, name) for name in event_module.__all__]
    made = [kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, Event)]
    common = {field.name for field in fields(Event)}
    titles = ("Events that every observer receives", "Events on request")
    for on_request, title in enumerate(titles):
        shown = {
            cells[0].strip("`"): re.findall(r"`(\w+)`", cells[2])
            for cells in rows(EVENTS.section(title))
            if cells[0].startswith("`")
        }
        wanted = {
            kind.__name__: sorted({field.name for field in fields(kind)} - common)
            for kind in made
            if kind is not Event and kind.on_request == bool(on_request)
        }
        assert {name: sorted(each) for name, each in shown.items()} == wanted, (shown, wanted)
    first = EVENTS.text[: EVENTS.text.index("\n## ")]
    assert {row[0].strip("`") for row in rows(first) if row[0].startswith("`")} == common


# Limits


@agreement("the limits")
def limit_tables() -> None:
    shown = {row[0]: row[1] for title in LIMITS for row in rows(LIMIT_PAGE.section(title))}
    unread = {name for name in shown if name not in ("limit", "---")}
    for title, numbers in LIMITS.items():
        for name, known in numbers.items():
            unread.remove(name)
            for limit in known:
                assert f"{limit:,}" in shown[name], f"{title}: {name}: the code has {limit:,}"
    assert not unread, f"no constant is compared with: {unread}"


LIMITS: dict[str, dict[str, tuple[int, ...]]] = {
    "Limits of the API": {
        "requests in a batch": (limits.MAX_REQUESTS,),
        "body of a batch": (limits.MAX_BODY_BYTES,),
        "time of a batch": (24,),
        "results of a batch": (limits.RESULTS_KEPT_DAYS,),
        "`max_tokens`": (limits.MAX_OUTPUT_TOKENS,),
        "`max_tokens` with the beta for long output": (limits.MAX_LONG_OUTPUT_TOKENS,),
        "`budget_tokens` of `thinking`": (limits.LEAST_THINKING_BUDGET,),
        "pages of the PDFs in a request": (
            limits.MAX_PDF_PAGES,
            limits.max_pdf_pages("claude-haiku-4-5"),
        ),
        "side of an image": (MAX_IMAGE_SIDE, documents._MANY_IMAGES, documents._SIDE_OF_MANY),
        "`cache_control` marks in a request": (limits.MAX_CACHE_POINTS,),
    },
    "Limits of claude-batch": {
        "sendings of one request": (MAX_SENDING,),
        "name of a model": (limits.LONGEST_MODEL_NAME,),
        "name of an actor, with its namespace": (LONGEST_ACTOR_NAME,),
        "key of a single call": (single_calls.LONGEST_CALL_KEY,),
        "betas of a request": (limits.LONGEST_BETAS,),
        "size of a response, unpacked": (MOST_BODY_BYTES // 2**20,),
        "shapes of requests that preflight checks in a run": (MOST_SHAPES,),
        "runs that `status` lists": (NEWEST_RUNS,),
        "functions that a model calls, in one process": (TOOLS_AT_ONCE, ASKING_AT_ONCE),
        "plain methods of middleware, in one process": (WORKERS,),
        "events that an observer has not taken": (QUEUE,),
        "a line of results": (MOST_BODY_BYTES // 2**20, LONGEST_LINE // 2**20),
        "lines of results that are not valid results": (
            MOST_STRANGE_LINES,
            MOST_STRANGE_BYTES // 2**20,
        ),
        "body of a call to the gateway": (LARGEST_BODY // 2**20, LARGEST_BODIES // 2**20),
        "headers of a call to the gateway": (MOST_LINES, LARGEST_HEAD // 2**10),
        "URL of a call to the gateway": (LARGEST_URL // 2**10,),
        "body that still comes when the gateway has refused its call, and closes the connection": (
            int(BODY_LINGER),
        ),
        "body that still comes after any other early response of the gateway": (
            LARGEST_BODY // 2**20,
            SLOWEST // 2**10,
        ),
        "time until the headers of a call to the gateway are complete": (int(PATIENCE),),
        "time until a call to `worker --health` is complete": (int(server_commands._TIMEOUT),),
        "calls to `worker --health` at the same time": (server_commands._MOST_CALLERS,),
        "calls that wait on one connection of the gateway for an earlier response": (
            MOST_PIPELINED,
        ),
        "`Idempotency-Key` of the gateway and of `client()`": (LONGEST_KEY,),
        "token of the dashboard": (SHORTEST_TOKEN,),
        "actor file, price file, tokens file of the gateway": (MOST_BYTES,),
        "memory of the process that reads a document": (MOST_MEMORY,),
        "PostgreSQL": (OLDEST_SERVER,),
    },
}
"""The numbers of each row, as the code has them. 24 hours is the API's own, and in no constant."""


# States


@agreement("the states of requests and batches")
def state_tables() -> None:
    for title, kind in (("Requests", cb.RequestState), ("Batches", cb.BatchState)):
        shown = [row[0].strip("`") for row in rows(STATES.section(title)) if row[0][0] == "`"]
        assert sorted(shown) == sorted(state.value for state in kind), (title, shown)
    final = [state for state in cb.RequestState if state.is_final]
    assert len(final) == 9 and "The last nine are final." in STATES.text
    requests = [row[0].strip("`") for row in rows(STATES.section("Requests")) if row[0][0] == "`"]
    assert set(requests[-9:]) == set(final), requests
    runs = codes(STATES.section("Runs"))
    assert {state.value for state in cb.RunState} <= runs, runs


# Output


@then("the reference describes each field and column of the output")
def output_fields(context: Context) -> None:
    lines = (context.tmp / "out.jsonl").read_text("utf-8").splitlines()
    seen = {name for line in lines for name in json.loads(line)}
    table = OUTPUT.section("Output lines")
    described = set(re.findall(r"^\| `(\w+)` \| ", table, re.MULTILINE))
    errors = {json.loads(line)["error"]["type"] for line in lines if "error" in json.loads(line)}
    assert seen <= described and {"ok", "error", "reused", "via"} <= seen, seen ^ described
    assert "refusal" in errors and errors - {"invalid_request_error"} <= described, errors
    with (context.tmp / "out.csv").open(encoding="utf-8", newline="") as stream:
        columns = next(csv.reader(stream))
    shown = [code for row in rows(OUTPUT.section("CSV columns")) for code in codes_in_order(row[0])]
    assert shown == columns, (shown, columns)


def codes_in_order(text: str) -> list[str]:
    """What stands in inline code, in order."""
    return re.findall(r"`([^`]+)`", text)


@agreement("the types of errors in the output")
def error_types() -> None:
    known = {*errors._TYPES.values()}
    table = OUTPUT.section("Output lines")
    shown = codes("\n".join(row[0] for row in rows(table[table.index("`error.type` is") :])))
    assert shown - {"error.type", "http_413"} == known, known ^ shown


# JSON output


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "map": (dict,),
    "list": (list,),
}
"""The types of the page. `JSON` is any value."""


def json_fields(command: str) -> dict[str, str]:
    """The fields of a command's JSON as the page has them, each with its type."""
    found = {
        cells[0].strip("`"): cells[1]
        for cells in rows(JSON_OUTPUT.section(command))
        if cells[0].startswith("`")
    }
    assert found, command
    if link := next((name for name, kind in found.items() if kind == "[cost](#cost)"), None):
        found[link] = "object"
        of_cost = json_fields("cost").items()
        found |= {
            f"{link}.{name}": kind
            for name, kind in of_cost
            if not re.match("by|shares", name)  # `status` does not group costs
        }
    return found


def walk(value: Any, fields: dict[str, str], path: str, seen: set[str]) -> Iterator[str]:
    """Add each field of a printed value to those that were seen; yield what the page lacks."""
    if path:
        # A share of the costs has the fields of the whole.
        name = path if path in fields else path.replace("shares[].", "")
        if (kind := fields.get(name)) is None:
            yield f"{path} is not described"
            return
        seen.add(name)
        plain, _, nullable = kind.partition(" or ")
        if plain == "JSON" or (value is None and nullable == "null"):
            return
        is_right = isinstance(value, _JSON_TYPES[plain])
        if not is_right or (isinstance(value, bool) and plain != "boolean"):
            yield f"{path} is {value!r}, and not: {kind}"
        if plain == "map":
            return
    if isinstance(value, dict):
        for key, each in value.items():
            yield from walk(each, fields, f"{path}.{key}" if path else key, seen)
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, dict):
                for key, inner in each.items():
                    place = f"{path}[].{key}" if path else key
                    yield from walk(inner, fields, place, seen)


@then('the reference describes the JSON of "{command}"')
def json_of_command(context: Context, command: str) -> None:
    printed = json.loads(context.ended.stdout)
    assert printed, "nothing was printed"
    if not hasattr(context, "json_seen"):
        context.json_seen = {}
    seen = context.json_seen.setdefault(command, set())
    wrong = list(walk(printed, json_fields(command), "", seen))
    assert not wrong, wrong


@rule("JSON is compared with the reference")
def _(command: str, printed: Any) -> dict[str, str]:
    return {"problem": ", ".join(walk(printed, json_fields(command), "", set()))}


@then("every field of the reference's JSON was printed, or is of a ledger on PostgreSQL")
def json_was_printed(context: Context) -> None:
    sections = re.findall(r"^## (.+)$", JSON_OUTPUT.text, re.MULTILINE)
    options = {name for name, each in commands(group) if "--json" in map_flags(each)}
    assert set(sections) == options == set(context.json_seen), options ^ set(sections)
    for command in sections:
        left = set(json_fields(command)) - context.json_seen[command]
        workers = {f"workers[].{field.name}" for field in fields(Worker)}
        assert left <= (workers if command == "ledger show" else set()), (command, left)


def map_flags(command: click.Command) -> set[str]:
    """The flags of all options of a command."""
    return {flag for each in command.params for flag in flags_of(each)}


# Explanations


@rule("the scenarios and suites that a page names exist,")
def _(page_of_docs: str) -> dict[str, Any]:
    text = page(f"docs/{page_of_docs}").text
    cited = re.findall(r"`(features/[\w/]+\.feature)`:((?:\s+“[^”]+”[;.,]?)+)", text)
    assert len(cited) > 5, cited
    assert len(cited) == text.count(".feature`"), "a feature is named without scenarios"
    gone: list[str] = []
    for feature, names in cited:
        source = (ROOT / feature).read_text("utf-8")
        known = re.findall(r"^\s*Scenario(?: Outline)?: (.+?)\s*$", source, re.MULTILINE)
        for title in re.findall(r"“([^”]+)”", names):
            # An outline's name may end in a placeholder, which a promise does not repeat.
            plain = " ".join(title.split())
            if not any(each.startswith(plain) for each in known):
                gone.append(f"{feature}: {plain}")
    suites = set(re.findall(r"`(robot/[\w/]+\.robot)`", text))
    return {"gone": ", ".join(gone + [suite for suite in suites if not (ROOT / suite).is_file()])}


@agreement("the packages")
def packages() -> None:
    shown = set(re.findall(r"^\| `(\w+)/` \|", ARCHITECTURE.section("Packages"), re.MULTILINE))
    package = Path(str(cb.__file__)).parent
    assert shown == {path.parent.name for path in package.glob("*/__init__.py")}, shown


@agreement("the tables of the ledger")
def ledger_tables() -> None:
    from claude_batch.ledger.schema import metadata

    text = ARCHITECTURE.section("The ledger")
    shown = {
        name
        for cell in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cell)
    }
    assert shown == set(metadata.tables), shown ^ set(metadata.tables)


@agreement("the states of the architecture")
def states() -> None:
    shown = set(re.findall(r"`([a-z_]+)`", ARCHITECTURE.section("States")))
    kinds = (cb.RequestState, cb.BatchState, cb.RunState)
    known = {state.value for kind in kinds for state in kind}
    assert shown == known, shown ^ known


@agreement("the lower bounds of dependencies")
def lower_bounds() -> None:
    text = page("docs/explanation/security.md").section("Dependencies")
    safe = dict(re.findall(r"^\| `([\w-]+)` \| ([\d.]+) \| CVE-", text, re.MULTILINE))
    assert safe
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    required = [*project["dependencies"], *chain.from_iterable(extras)]
    bounds = {
        found[1].lower(): found[2]
        for line in required
        if (found := re.match(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", line))
    }
    low = {name: bounds[name.lower()] for name in safe if _below(bounds[name.lower()], safe[name])}
    assert not low, low


def _below(version: str, bound: str) -> bool:
    pairs = zip_longest(version.split("."), bound.split("."), fillvalue="0")
    numbers = [(int(one), int(other)) for one, other in pairs]
    return [one for one, _ in numbers] < [other for _, other in numbers]
