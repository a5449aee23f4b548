"""`claude-batch doctor` and `actors`: check an installation, the API itself, and actors' files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from claude_batch.cli.options import DURATION, complete_files, option, require_value
from claude_batch.cli.user_messages import (
    BadOutput,
    CommandGroup,
    Exit,
    confirmed,
    print_json,
    print_line,
    require_stdout,
    say,
)
from claude_batch.core.errors import BadInput
from claude_batch.core.quantities import count_of, dollars, format_duration
from claude_batch.core.settings import default_ledger, naming_ledger

if TYPE_CHECKING:
    from claude_batch.providers.health_checks import Finding
    from claude_batch.providers.service_record import Record, Recording, Report

# Doctor -------------------------------------------------------------------------------------------

_MODEL = "claude-haiku-4-5"
_HOUR = 3600.0
_POLL_INTERVAL = 30.0


_EXIT_CODES = """\b
Exit codes:
  0  no check found a fault
  1  a check found a fault; with --live also: the API differs from the sandbox
  2  bad usage, or the ledger cannot be used
  3  with --live: batches were left at the API
  4  sending is halted, or the API refuses the key
If several apply, the highest counts."""


@click.command("doctor", epilog=_EXIT_CODES)
@click.option(
    "--live",
    is_flag=True,
    help="Also make two tiny batches with your key, for less than a cent, and compare what the "
    "API sends with what the sandbox sends.",
)
@click.option("--yes", is_flag=True, help="With --live: do not ask before anything is sent.")
@click.option(
    "--model",
    default=_MODEL,
    show_default=True,
    callback=require_value,
    help="With --live: the model of the requests.",
)
@click.option(
    "--wait",
    type=DURATION,
    default="30m",
    show_default=True,
    help="With --live: how long to wait for the batches to end.",
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    shell_complete=complete_files,
    callback=require_value,
    help="With --live: a file for the report, without keys, ids or texts. Markdown, or JSON if "
    "its name ends in .json.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@option("ledger")
@option("base_url")
@option("api_key_env")
@option("poll_interval")
@option("prices")
def doctor_command(
    live: bool,
    yes: bool,
    model: str,
    wait: float,
    output: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Check the installation, and the way to the API.

    Checks the ledger, the disk, the clock, the versions, the connection and, if one is set, the
    key. Changes nothing. Only --live needs a key and costs something: at most the amount that it
    prints first.
    """
    given = click.get_current_context().get_parameter_source
    for name in () if live else ("yes", "model", "wait", "output"):
        if given(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name} needs --live")
    if as_json:
        require_stdout()
    if output is not None:
        from claude_batch.cli.run_delivery import check_sources, check_writable

        if output == "-":
            raise click.UsageError(
                "the report is not written to standard output; name a file, or use --json"
            )
        check_writable(output, default_ledger(settings["ledger"]))
        prices = settings["prices"]
        check_sources(output, None, [prices] if prices else [])
    findings = _check(settings)
    if not as_json:
        _show(findings)
    values: dict[str, Any] = {
        **_counts(findings),
        "checks": [each.to_dict() for each in findings],
    }
    code = _worst(findings)
    if live:
        report, ended = _examine(model, wait, settings, yes=yes)
        code = max(code, ended)
        values["live"] = report.to_dict()
        if not as_json:
            for line in report.summary():
                print_line(line)
        if output is not None:
            _write(output, report)
    if as_json:
        print_json(values)
    raise SystemExit(code)


def _check(settings: Mapping[str, Any]) -> list[Finding]:
    import asyncio

    from claude_batch.providers.health_checks import check_api, check_ledger, check_versions

    location = default_ledger(settings["ledger"])
    found = check_ledger(location)
    return [
        check_versions(location),
        *(replace(each, message=naming_ledger(each.message, location)) for each in found),
        *asyncio.run(check_api(settings["base_url"], settings["api_key_env"])),
    ]


def _worst(findings: list[Finding]) -> Exit:
    codes = {"ledger": Exit.USAGE, "halted": Exit.HALTED, "other": Exit.FAILED}
    return max((codes[each.cause] for each in findings if each.level == "fault"), default=Exit.OK)


def _show(findings: list[Finding]) -> None:
    for each in findings:
        print_line(f"{each.level:8} {each.check}: {each.message}")
        if each.remedy:
            print_line(f"{'':8} {each.remedy}")
    counts = _counts(findings)
    print_line(f"{count_of(counts['faults'], 'fault')}, {count_of(counts['warnings'], 'warning')}")


def _counts(findings: list[Finding]) -> dict[str, int]:
    levels = [each.level for each in findings]
    return {"faults": levels.count("fault"), "warnings": levels.count("warning")}


# Live ---------------------------------------------------------------------------------------------


def _examine(
    model: str, wait: float, settings: Mapping[str, Any], *, yes: bool
) -> tuple[Report, Exit]:
    """Make the calls to the sandbox, and after a confirmation to the service."""
    import asyncio

    from claude_batch.providers.engine_access import find_credentials
    from claude_batch.providers.service_record import Recording, Report
    from claude_batch.wire.connection import Connection, CredentialFault

    expected = asyncio.run(record_sandbox(model))
    given = find_credentials(settings["base_url"], None, settings["api_key_env"])
    try:
        connection = Connection(base_url=given.get("base_url"), api_key=given.get("api_key"))
    except CredentialFault as error:
        raise BadInput(str(error)) from None
    if not connection.credential:
        raise BadInput(
            "no API key: set ANTHROPIC_API_KEY, or name the variable that holds it with "
            "--api-key-env"
        )
    _confirm(model, settings["prices"], connection.base_url, yes=yes)
    interval = _POLL_INTERVAL if settings["poll_interval"] is None else settings["poll_interval"]
    recording = Recording(connection, model, lambda: asyncio.sleep(interval), seconds=wait)
    say(
        f"this may take minutes, at most {format_duration(wait)}; Ctrl-C ends it, and prints what "
        "is left at the API"
    )
    code, failure = _record_service(recording)
    report = Report(model, expected, recording, failure)
    for line in _left_behind(recording, connection.base_url):
        say(line)
    if report.differences:
        code = max(code, Exit.FAILED)
    if recording.batches or recording.uncertain:
        code = max(code, Exit.PARKED)
    return report, code


async def record_sandbox(model: str) -> Record:
    """Return what the sandbox sends; it runs for this call alone."""
    import asyncio

    try:
        from claude_batch.sandbox import SandboxServer, SandboxSettings
    except ImportError as error:
        raise click.UsageError(f"--live compares the API with the sandbox: {error}") from None
    from claude_batch.providers.service_record import Recording
    from claude_batch.wire.connection import Connection

    # The batches end when the clock is advanced, so a slow machine changes nothing.
    with SandboxServer(SandboxSettings(latency=_HOUR, cancel_latency=_HOUR)) as server:
        connection = Connection(base_url=server.url, api_key="sk-sandbox")
        try:
            recording = Recording(
                connection, model, lambda: asyncio.to_thread(server.advance_clock, _HOUR)
            )
            await recording.make()
            return recording.record
        finally:
            await connection.aclose()


def _confirm(model: str, prices: str | None, base_url: str, *, yes: bool) -> None:
    """Print the highest cost, and ask whether to go on. Raises `BadInput` if not."""
    from claude_batch.money.prices import prices_of
    from claude_batch.providers.service_record import most_cost

    cost = most_cost(model, prices_of(prices), at=time.time())
    if cost is None:
        raise BadInput(f"{model} has no known price; name another with --model")
    words = f"two batches with 4 requests are sent to {base_url}, for at most {dollars(cost)}"
    if yes:
        say(words)
    elif not confirmed(words, "Go on?", "Repeat with --yes"):
        raise BadInput("it was not confirmed")


def _record_service(recording: Recording) -> tuple[Exit, str]:
    """Make the calls to the service; return the exit code, and why they ended early."""
    import asyncio

    from claude_batch.providers.service_record import CallFailed
    from claude_batch.wire.connection import Unreachable

    async def work() -> None:
        try:
            await recording.make()
        finally:
            await recording.close()

    try:
        asyncio.run(work())
    except CallFailed as error:
        halted = error.fault is not None and error.fault.account_reason is not None
        return (Exit.HALTED if halted else Exit.FAILED), str(error)
    except (Unreachable, TimeoutError) as error:
        return Exit.PARKED, f"a call had no answer: {recording.reason(error)}"
    except KeyboardInterrupt:
        return Exit.PARKED, "interrupted"
    if not recording.batches:
        return Exit.OK, ""
    has_ended = all(status == "ended" for status in recording.batches.values())
    trouble = "could not be deleted" if has_ended else "has not ended in time"
    return Exit.PARKED, f"a batch {trouble}"


def _left_behind(recording: Recording, base_url: str) -> Iterator[str]:
    """Yield what is left at the API, and how to remove it."""
    headers = '-H "x-api-key: $ANTHROPIC_API_KEY" -H "anthropic-version: 2023-06-01"'
    for batch_id, status in recording.batches.items():
        url = f"{base_url.rstrip('/')}/v1/messages/batches/{batch_id}"
        yield f"batch {batch_id} is left at the API ({status}). To remove it:"
        if status != "ended":
            yield f"  curl -X POST {url}/cancel {headers}"
        yield f"  curl -X DELETE {url} {headers}   (once it has ended)"
    if recording.uncertain:
        yield (
            "a POST had no answer, so there may be one more batch at the API, whose requests are "
            "named doctor-…; the Console shows it"
        )


def _write(output: str, report: Report) -> None:
    import msgspec

    from claude_batch.providers.export import opened

    if Path(output).suffix == ".json":
        content = msgspec.json.format(msgspec.json.encode(report.to_dict()))
    else:
        content = report.markdown().encode()
    try:
        with opened(output) as stream:
            stream.write(content)
    except OSError as error:
        raise BadOutput(f"{output}: cannot be written: {error.strerror}") from None
    say(f"the report is in {output}; it contains no key, no id and no text of an answer")


# Actors' files ------------------------------------------------------------------------------------


@click.group("actors", cls=CommandGroup)
def actors_group() -> None:
    """Work with actors' YAML files."""


@actors_group.command("validate")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    shell_complete=complete_files,
    callback=require_value,
)
def validate_command(files: tuple[str, ...]) -> None:
    """Check actors' files; exit with 0 if all are valid, else with 2.

    Every error is reported with its line and remedy. A prompt is encoded with each actor as well,
    because its options and documents are read only then. The rules of batches apply, unless the
    file has `batch_processing: false`. Keys that are kept for a host framework and not used are
    named.
    """
    from claude_batch.actor.loader import ActorLoader

    code = Exit.OK
    for file in files:
        faults = [str(fault) for fault in ActorLoader.check(file)] or list(_use_faults(file))
        for fault in faults:
            say(fault)
        if faults:
            code = Exit.USAGE
        else:
            print_line(f"{file}: fine")
            for note in _unused(file):
                say(note)
    raise SystemExit(code)


def _unused(file: str) -> Iterator[str]:
    """Yield a note for each key of a valid file's actors that has no effect here."""
    from claude_batch.actor.loader import ActorLoader, unused_notes

    for actor in ActorLoader.load_all(file):
        yield from unused_notes(file, actor)


def _use_faults(file: str) -> Iterator[str]:
    """Yield what would keep the actors of a valid file from being asked."""
    from claude_batch.actor.loader import ActorLoader
    from claude_batch.actor.request import RequestEncoder
    from claude_batch.core.errors import ActorConfigurationError, ActorError, ProviderNotFoundError
    from claude_batch.core.files import read_small
    from claude_batch.providers.registry import default_registry

    for actor in ActorLoader.load_all(file):
        if actor.type == "llm":
            # Commands send the requests of any actor in batches. Only an actor that says so itself
            # is meant for live calls, whose rules are looser.
            is_live = actor.batch_mode is None and "batch_processing" in actor.model_fields_set
            try:
                RequestEncoder(actor, batch=not is_live).encode("A prompt")
            except ActorError as error:
                yield f"{file}: actor {actor.name}: {error}"
    try:
        # `load` would warn of the keys that `_unused` names.
        chosen = ActorLoader.loads(read_small(file), file)
    except ActorConfigurationError:
        return  # of several actors, none is the default
    if chosen.type != "llm":
        return
    try:
        default_registry.check(chosen)
    except (ActorConfigurationError, ProviderNotFoundError) as error:
        # Some of these name the actor themselves.
        words = str(error).removeprefix(f"actor {chosen.name} ")
        yield f"{file}: actor {chosen.name}: {words}"
