"""Actors as the YAML defines them, requests to them, and their answers."""

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.loader import ActorLoader
from claude_batch.actor.request import (
    DEFAULT_MAX_TOKENS,
    ActorRequest,
    RequestEncoder,
    RequestLike,
    Requests,
    build_params,
    encode,
)
from claude_batch.actor.response import ActorResponse, ActorResult

__all__ = [
    "DEFAULT_MAX_TOKENS",
    "ActorConfiguration",
    "ActorLoader",
    "ActorRequest",
    "ActorResponse",
    "ActorResult",
    "RequestEncoder",
    "RequestLike",
    "Requests",
    "build_params",
    "encode",
]
