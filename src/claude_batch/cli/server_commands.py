"""`claude-batch gateway` and `dashboard`: local servers that run until Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import click

from claude_batch.cli.options import (
    DURATION,
    ProviderOptions,
    open_provider,
    option,
    provider_options,
    require_ledger,
)
from claude_batch.cli.user_messages import print_line, say
from claude_batch.dashboard import TOKEN_VARIABLE, DashboardSettings
from claude_batch.gateway import GatewaySettings

_F = TypeVar("_F", bound=Callable[..., Any])


def _address_options(defaults: GatewaySettings | DashboardSettings) -> Callable[[_F], _F]:
    """Add ``--host`` and ``--port`` to a command."""
    host = click.option(
        "--host", default=defaults.host, show_default=True, help="Address to listen on."
    )
    port = click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=defaults.port,
        show_default=True,
        help="TCP port; 0 takes a free one.",
    )
    return lambda command: host(port(command))


def _unusable_address(host: str, port: int, error: OSError) -> click.UsageError:
    """Return the error for an address that a server cannot listen on."""
    return click.UsageError(
        f"{host}:{port}: {error.strerror}. Choose another address with --host or --port; "
        "--port 0 takes a free port"
    )


# Gateway ------------------------------------------------------------------------------------------

_GATEWAY = GatewaySettings()


@click.command("gateway")
@provider_options
@option("max_attempts")
@option("retry_on")
@option("reuse")
@option("failure_ttl")
@option("on_disconnect")
@_address_options(_GATEWAY)
@click.option(
    "--hold",
    type=DURATION,
    default=f"{_GATEWAY.hold:g}s",
    show_default=True,
    help="How long a response waits for its answer before it begins.",
)
@click.option(
    "--ping",
    type=DURATION,
    default=f"{_GATEWAY.ping:g}s",
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
        from claude_batch.gateway.gateway_app import serve
    except ImportError as error:
        raise click.UsageError(
            f"{error}; install the gateway's libraries: pip install 'claude-batch[gateway]'"
        ) from None
    with open_provider(options) as provider:
        try:
            serve(provider, settings, on_start=_announce)
        except OSError as error:
            raise _unusable_address(settings.host, settings.port, error) from None
        if options.sandbox:
            say("the gateway has ended; its sandbox and ledger are removed")
        else:
            say("the gateway has ended; its batches go on, and the next start collects them")


def _announce(url: str) -> None:
    print_line(f"gateway listening on {url}")
    say(f"set ANTHROPIC_BASE_URL={url} in the programs that use Claude")


# Dashboard ----------------------------------------------------------------------------------------

_DASHBOARD = DashboardSettings()


@click.command("dashboard")
@provider_options
@_address_options(_DASHBOARD)
@click.option(
    "--token",
    envvar=TOKEN_VARIABLE,
    show_envvar=True,
    metavar="TOKEN",
    help="Admit only browsers that log in with it. Required for an address that other machines "
    "reach.",
)
@click.option("--allow-host", multiple=True, metavar="NAME", help="Serve this Host header too.")
@click.option(
    "--allow-actions",
    is_flag=True,
    help="Let pages cancel and retry runs, change budgets, and decide unknown requests.",
)
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option(
    "--sandbox",
    is_flag=True,
    help="Show runs that are being answered by a temporary sandbox: nothing is sent or billed.",
)
def dashboard_command(
    *,
    options: ProviderOptions,
    host: str,
    port: int,
    token: str | None,
    allow_host: tuple[str, ...],
    allow_actions: bool,
    no_open: bool,
) -> None:
    """Show the ledger in a browser: runs, requests, costs, and what waits for you.

    The pages only read the ledger, and change as it does; with --allow-actions they also change
    runs and budgets. Ctrl-C ends the command; the runs are
    not affected.
    """
    settings = DashboardSettings(
        host=host,
        port=port,
        token=token,
        allowed_hosts=frozenset(allow_host),
        allow_actions=allow_actions,
        prices=options.settings.get("prices"),
    )
    try:
        from claude_batch.dashboard.dashboard_server import serve
    except ImportError as error:
        raise click.UsageError(
            f"{error}; install the dashboard's libraries: pip install 'claude-batch[dashboard]'"
        ) from None
    with ExitStack() as stack:
        location = options.location
        if options.sandbox:
            from claude_batch.dashboard.demo_runs import demo_answer, start_demo

            provider = stack.enter_context(open_provider(options, responder=demo_answer))
            location = provider.ledger
            start_demo(provider)
        else:
            require_ledger(location)
        try:
            serve(location, settings, on_start=_announcing(opens=not no_open))
        except OSError as error:
            raise _unusable_address(host, port, error) from None
    if options.sandbox:
        say("the dashboard has ended; its sandbox and ledger are removed")


def _announcing(*, opens: bool) -> Callable[[str], None]:
    def announce(url: str) -> None:
        print_line(f"dashboard listening on {url}")
        if opens:
            import webbrowser

            webbrowser.open(url)

    return announce
