"""`claude-batch gateway`: the Messages API as a local server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from claude_batch.cli.options import (
    DURATION,
    ProviderOptions,
    open_provider,
    option,
    provider_options,
    unusable_address,
)
from claude_batch.cli.user_messages import print_line, say
from claude_batch.gateway.gateway_settings import GatewaySettings

_DEFAULTS = GatewaySettings()


@click.command("gateway")
@provider_options
@option("max_attempts")
@option("retry_on")
@option("reuse")
@option("failure_ttl")
@option("on_disconnect")
@click.option("--host", default=_DEFAULTS.host, show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_DEFAULTS.port,
    show_default=True,
    help="TCP port; 0 takes a free one.",
)
@click.option(
    "--hold",
    type=DURATION,
    default=f"{_DEFAULTS.hold:g}s",
    show_default=True,
    help="How long a response waits for its answer before it begins.",
)
@click.option(
    "--ping",
    type=DURATION,
    default=f"{_DEFAULTS.ping:g}s",
    show_default=True,
    help="Time between two signs of life to a caller that waits.",
)
@click.option(
    "--tokens",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Admit only callers with a token of this file. Required for an address that other "
    "machines reach.",
)
@click.option(
    "--new-token",
    metavar="NAME",
    help="Make a token for a caller, add it to --tokens FILE, print it, and exit.",
)
@click.option("--allow-host", multiple=True, metavar="NAME", help="Serve this Host header too.")
@click.option(
    "--allow-origin", multiple=True, metavar="ORIGIN", help="Admit calls of this web page."
)
@click.option(
    "--sandbox",
    is_flag=True,
    help="Answer from a temporary sandbox: nothing is sent or billed.",
)
def gateway_command(
    *,
    options: ProviderOptions,
    tokens: Path | None,
    new_token: str | None,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    **fields: Any,
) -> None:
    """Serve the Messages API on this machine, and answer each call from batches at half the price.

    Set ANTHROPIC_BASE_URL to the printed address in any program that uses Claude. Calls wait until
    their batch has ended, and connections are kept alive meanwhile. Requests that were sent go on
    if a program or the gateway ends, and the same call gets its answer later.
    """
    if new_token is not None:
        from claude_batch.gateway.access import add_token

        if tokens is None:
            raise click.UsageError("--new-token needs --tokens FILE")
        print_line(add_token(tokens, new_token))
        return
    settings = GatewaySettings(
        tokens=tokens,
        allowed_hosts=frozenset(allow_host),
        allowed_origins=frozenset(allow_origin),
        **fields,
    )
    try:
        from claude_batch.gateway.gateway_server import serve
    except ImportError as error:
        raise click.UsageError(
            f"{error}; install the gateway's libraries: pip install 'claude-batch[gateway]'"
        ) from None
    with open_provider(options) as provider:
        try:
            serve(provider, settings, on_start=_announce)
        except OSError as error:
            raise unusable_address(settings.host, settings.port, error) from None
        if options.sandbox:
            say("the gateway has ended; its sandbox and ledger are removed")
        else:
            say("the gateway has ended; its batches go on, and the next start collects them")


def _announce(url: str) -> None:
    print_line(f"gateway listening on {url}")
    say(f"set ANTHROPIC_BASE_URL={url} in the programs that use Claude")
