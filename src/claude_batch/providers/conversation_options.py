"""What makes an actor's requests conversations: its tools, and what judges its answers."""

from __future__ import annotations

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.lifecycle.tool_runner import Talk

__all__ = ["talk_of"]


def talk_of(actor: ActorConfiguration) -> Talk:
    """How an actor's conversations go on. Raises `ActorConfigurationError` for a tool that is not
    there."""
    toolset = actor.toolset
    if toolset is None:
        return Talk(judge=actor.judge)
    return Talk(toolset.remembered, toolset.tools, actor.judge)
