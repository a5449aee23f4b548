"""claude-batch: agents that use Claude at half the price, through Anthropic's Message Batches API.

Names are imported on first use, so that ``import claude_batch`` and ``claude-batch --help`` stay
fast.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

from claude_batch._version import __version__

if TYPE_CHECKING:
    from claude_batch.actor.configuration import ActorConfiguration
    from claude_batch.actor.documents import Document
    from claude_batch.actor.loader import ActorLoader
    from claude_batch.actor.middleware import Middleware, PostProcessor
    from claude_batch.actor.request import ActorRequest, RequestLike, Requests
    from claude_batch.actor.response import ActorResponse, ActorResult
    from claude_batch.actor.tools import tool
    from claude_batch.core import events
    from claude_batch.core.answer_parts import Citation, Usage
    from claude_batch.core.batch_processing import BatchProcessingMode
    from claude_batch.core.errors import (
        AccountHaltedError,
        ActorConfigurationError,
        ActorError,
        AnswerError,
        AnswerRefusedError,
        BatchRequestError,
        BatchTimeoutError,
        BudgetExceededError,
        ContextWindowExceededError,
        ConversationStoppedError,
        EngineStoppedError,
        InvalidRequestError,
        KeyConflictError,
        LedgerError,
        LiveRequestError,
        MalformedAnswerError,
        MiddlewareError,
        MissingResultError,
        OutputValidationError,
        PreflightError,
        ProviderNotFoundError,
        RunNotFoundError,
        SubmissionUnknownError,
        ToolInterruptedError,
        TurnLimitError,
        TurnsForgottenError,
    )
    from claude_batch.core.events import Event, Observer
    from claude_batch.core.states import BatchState, RequestState, RunState
    from claude_batch.core.user_functions import (
        Classification,
        Classifier,
        PaceStrategy,
        RequestFault,
    )
    from claude_batch.integrations.client import (
        client,
        client_sync,
        http_client,
        http_client_sync,
    )
    from claude_batch.integrations.data_frame import to_frame
    from claude_batch.providers.actor import Actor, load_actor, make_actor
    from claude_batch.providers.batch import ClaudeBatchProvider, open_run
    from claude_batch.providers.cost_report import CostReport, CostShare
    from claude_batch.providers.engine_access import Pruned
    from claude_batch.providers.estimation import Estimate
    from claude_batch.providers.keywords import CallKeywords
    from claude_batch.providers.live import ClaudeProvider
    from claude_batch.providers.progress import Progress
    from claude_batch.providers.protocol import FullProvider, Provider, ProviderCapabilities
    from claude_batch.providers.registry import ProviderFactory, ProviderRegistry, default_registry
    from claude_batch.providers.run import Run
    from claude_batch.providers.status import BatchStatus, RunStatus

# A library is silent unless its user configures logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_HOMES = {
    "actor.configuration": ("ActorConfiguration",),
    "actor.documents": ("Document",),
    "actor.loader": ("ActorLoader",),
    "actor.middleware": ("Middleware", "PostProcessor"),
    "actor.request": ("ActorRequest", "RequestLike", "Requests"),
    "actor.response": ("ActorResponse", "ActorResult"),
    "actor.tools": ("tool",),
    "core.answer_parts": ("Citation", "Usage"),
    "core.errors": (
        "AccountHaltedError",
        "ActorConfigurationError",
        "ActorError",
        "AnswerError",
        "AnswerRefusedError",
        "BatchRequestError",
        "BatchTimeoutError",
        "BudgetExceededError",
        "ContextWindowExceededError",
        "ConversationStoppedError",
        "EngineStoppedError",
        "InvalidRequestError",
        "KeyConflictError",
        "LedgerError",
        "LiveRequestError",
        "MalformedAnswerError",
        "MiddlewareError",
        "MissingResultError",
        "OutputValidationError",
        "PreflightError",
        "ProviderNotFoundError",
        "RunNotFoundError",
        "SubmissionUnknownError",
        "ToolInterruptedError",
        "TurnLimitError",
        "TurnsForgottenError",
    ),
    "core.events": ("Event", "Observer"),
    "core.batch_processing": ("BatchProcessingMode",),
    "core.states": ("BatchState", "RequestState", "RunState"),
    "core.user_functions": ("Classification", "Classifier", "PaceStrategy", "RequestFault"),
    "integrations.client": ("client", "client_sync", "http_client", "http_client_sync"),
    "integrations.data_frame": ("to_frame",),
    "providers.actor": ("Actor", "load_actor", "make_actor"),
    "providers.batch": ("ClaudeBatchProvider", "open_run"),
    "providers.cost_report": ("CostReport", "CostShare"),
    "providers.engine_access": ("Pruned",),
    "providers.estimation": ("Estimate",),
    "providers.keywords": ("CallKeywords",),
    "providers.live": ("ClaudeProvider",),
    "providers.protocol": ("FullProvider", "Provider", "ProviderCapabilities"),
    "providers.registry": ("ProviderFactory", "ProviderRegistry", "default_registry"),
    "providers.run": ("Run",),
    "providers.progress": ("Progress",),
    "providers.status": ("BatchStatus", "RunStatus"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AccountHaltedError",
    "Actor",
    "ActorConfiguration",
    "ActorConfigurationError",
    "ActorError",
    "ActorLoader",
    "ActorRequest",
    "ActorResponse",
    "ActorResult",
    "AnswerError",
    "AnswerRefusedError",
    "BatchProcessingMode",
    "BatchRequestError",
    "BatchState",
    "BatchStatus",
    "BatchTimeoutError",
    "BudgetExceededError",
    "CallKeywords",
    "Citation",
    "Classification",
    "Classifier",
    "ClaudeBatchProvider",
    "ClaudeProvider",
    "ContextWindowExceededError",
    "ConversationStoppedError",
    "CostReport",
    "CostShare",
    "Document",
    "EngineStoppedError",
    "Estimate",
    "Event",
    "FullProvider",
    "InvalidRequestError",
    "KeyConflictError",
    "LedgerError",
    "LiveRequestError",
    "MalformedAnswerError",
    "Middleware",
    "MiddlewareError",
    "MissingResultError",
    "Observer",
    "OutputValidationError",
    "PaceStrategy",
    "PostProcessor",
    "PreflightError",
    "Progress",
    "Provider",
    "ProviderCapabilities",
    "ProviderFactory",
    "ProviderNotFoundError",
    "ProviderRegistry",
    "Pruned",
    "RequestFault",
    "RequestLike",
    "RequestState",
    "Requests",
    "Run",
    "RunNotFoundError",
    "RunState",
    "RunStatus",
    "SubmissionUnknownError",
    "ToolInterruptedError",
    "TurnLimitError",
    "TurnsForgottenError",
    "Usage",
    "__version__",
    "client",
    "client_sync",
    "default_registry",
    "events",
    "http_client",
    "http_client_sync",
    "load_actor",
    "make_actor",
    "open_run",
    "to_frame",
    "tool",
]


def __getattr__(name: str) -> object:
    if name == "events":
        return importlib.import_module(f"{__name__}.core.events")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
