"""``worker``: drive a ledger for others, and take over from a worker that died."""

from __future__ import annotations

import click

from claude_batch.cli.exits import EXIT_CODES
from claude_batch.cli.options import ProviderOptions, open_provider, provider_options
from claude_batch.cli.user_messages import say


@click.command("worker", epilog=EXIT_CODES)
@provider_options
def worker_command(options: ProviderOptions) -> None:
    """Send and collect what others store in the ledger, until Ctrl-C or SIGTERM.

    Start as many as you like, on as many machines as reach the ledger: one of them drives each
    workspace, and another takes over within 15 seconds of its death. The ledger has to be on
    PostgreSQL for more than one machine.
    """
    from claude_batch.cli.run_delivery import parkable

    with open_provider(options) as provider:
        try:
            with parkable():
                engine, _ = provider.opening().result()
                say(f"worker {engine.process} works on {engine.ledger.location}")
                while True:
                    engine.check()
                    engine.change_after(engine.version).result()
        except KeyboardInterrupt:
            say("the worker has ended; others, or the next one, go on with what it left")
