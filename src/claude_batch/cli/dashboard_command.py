"""`claude-batch dashboard`: pages in a browser that show the ledger."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from claude_batch.cli.existing_ledger import require_ledger
from claude_batch.cli.options import (
    ProviderOptions,
    open_provider,
    provider_options,
    unusable_address,
)
from claude_batch.cli.user_messages import print_line, say
from claude_batch.dashboard import (
    TOKEN_VARIABLE,
    DashboardSettings,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_DEFAULTS = DashboardSettings()


@click.command("dashboard")
@provider_options
@click.option("--host", default=_DEFAULTS.host, show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_DEFAULTS.port,
    show_default=True,
    help="TCP port; 0 takes a free one.",
)
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
            raise unusable_address(host, port, error) from None
    if options.sandbox:
        say("the dashboard has ended; its sandbox and ledger are removed")


def _announcing(*, opens: bool) -> Callable[[str], None]:
    def announce(url: str) -> None:
        print_line(f"dashboard listening on {url}")
        if opens:
            import webbrowser

            webbrowser.open(url)

    return announce
