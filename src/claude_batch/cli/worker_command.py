"""``worker``: drive a ledger for others, and take over from a worker that died."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from claude_batch.cli.exits import EXIT_CODES
from claude_batch.cli.options import ProviderOptions, open_provider, provider_options
from claude_batch.cli.user_messages import say
from claude_batch.core.ledger_location import with_schema

if TYPE_CHECKING:
    from collections.abc import Generator

    from claude_batch.providers.batch import ClaudeBatchProvider


@click.command("worker", epilog=EXIT_CODES)
@provider_options
@click.option(
    "--health",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve the probes /healthz and /readyz on this port of all addresses; 0 takes a free one.",
)
@click.option(
    "--tools",
    multiple=True,
    metavar="MODULE",
    help="A module, or MODULE:FUNCTION. Runs in the ledger may call its functions in this process, "
    "also while another worker drives. Can be repeated.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help="The most functions that run here at the same time (16).",
)
@click.option(
    "--schema",
    metavar="NAME",
    help="The ledger's schema in its PostgreSQL database, if its URL names none (claude_batch).",
)
def worker_command(
    options: ProviderOptions,
    health: int | None,
    tools: tuple[str, ...],
    concurrency: int | None,
    schema: str | None,
) -> None:
    """Send and collect what others store in the ledger, until Ctrl-C or SIGTERM.

    Start as many as you like, on as many machines as reach the ledger: one of them drives each
    workspace, and another takes over within 15 seconds of its death. The ledger has to be on
    PostgreSQL for more than one machine.
    """
    from claude_batch.actor.tools import offer_tools
    from claude_batch.cli.run_delivery import parkable

    if schema is not None:
        try:
            place = with_schema(options.location, schema)
        except ValueError as error:
            raise click.UsageError(f"--schema {schema}: {error}") from None
        options = replace(options, settings={**options.settings, "ledger": place})
    offered = [name for place in tools for name in offer_tools(place)]
    with open_provider(options) as provider:
        try:
            with parkable(), _health(provider, health):
                engine, _ = provider.opening().result()
                engine.workbench.helps = bool(offered)
                if concurrency is not None:
                    engine.workbench.most_running = concurrency
                say(f"worker {engine.process} works on {engine.ledger.location}")
                if offered:
                    say(f"it runs the tools {', '.join(offered)}")
                while True:
                    engine.check()
                    engine.change_after(engine.version).result()
        except KeyboardInterrupt:
            say("the worker has ended; others, or the next one, go on with what it left")


@contextlib.contextmanager
def _health(provider: ClaudeBatchProvider, port: int | None) -> Generator[None]:
    """Serve the probes, if there is a port for them."""
    if port is None:
        yield
        return
    from claude_batch.cli.probe_server import probes

    with contextlib.ExitStack() as stack:
        try:
            served = stack.enter_context(probes(port, provider.why_not_sending))
        except OSError as error:
            raise click.UsageError(f"--health {port}: {error.strerror}") from None
        say(f"probes on port {served}: /healthz and /readyz")
        yield
