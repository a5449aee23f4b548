"""A gateway that sends Claude Code a ping each 100 ms: `hasty_gateway.py`, in place of 50 s.

So 30 minutes take 4 seconds.
"""

from __future__ import annotations

import claude_batch as cb
from claude_batch.gateway import GatewaySettings
from claude_batch.gateway.gateway_app import GatewayServer

PING = 0.1

with cb.ClaudeBatchProvider() as provider:
    settings = GatewaySettings(port=0, hold=PING, ping=PING, claude_code_ping=PING)
    GatewayServer(provider, settings).serve(
        lambda url: print(f"gateway listening on {url}", flush=True)
    )
