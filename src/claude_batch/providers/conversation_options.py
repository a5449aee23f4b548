"""Options that make an actor's requests conversations: its tools and its answer validation."""

from __future__ import annotations

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.lifecycle.tool_runner import Talk


def talk_of(actor: ActorConfiguration) -> Talk:
    """Return how an actor's conversations continue.

    Raises `ActorConfigurationError` if a tool does not exist.
    """
    toolset = actor.toolset
    if toolset is None:
        return Talk(judge=actor.judge)
    return Talk(toolset.remembered, toolset.tools, actor.judge)
