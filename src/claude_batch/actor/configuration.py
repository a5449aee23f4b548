"""`ActorConfiguration`: an actor's YAML, validated, and written back unchanged.

`claude_batch.actor.loader` reads files and reports errors with their lines.
`claude_batch.actor.request` converts an actor and a request to Messages params.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, cast, get_args

import msgspec
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    StrictBool,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from claude_batch.actor.documents import Document, documents_of, with_documents
from claude_batch.actor.output import Labels, checked_schema, schema_in
from claude_batch.actor.tools import Toolset, as_tool, functions_in, toolset_of
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.errors import ActorConfigurationError, InvalidRequestError
from claude_batch.wire.encoding import plain_text
from claude_batch.wire.limits import CAPABILITIES
from claude_batch.wire.param_checks import is_list_of_text, kind_fault
from claude_batch.wire.schemas import close_objects

LONGEST_ACTOR_NAME = 256
"""Most characters of an actor's name, with its namespace."""

# Keys of the YAML ---------------------------------------------------------------------------------

_HOISTED = (
    *("description", "system_prompt", "options", "response_format", "batch_processing"),
    *("documents", "citations", "model_capabilities"),
)
# Fields that may stand in a nested `config` as well as beside it.

LOOSE_OPTIONS = ("max_tokens", "temperature", "top_p", "top_k", "stop_sequences")
# Messages parameters that hosts write beside `model` instead of in `options`. To carry them without
# sending them would silently change every answer.

_CONFIG_KEYS = (*_HOISTED, *LOOSE_OPTIONS, "provider", "model", "actor")

MESSAGES_PARAMETERS = (
    *LOOSE_OPTIONS,
    *("betas", "billing_policy", "cache_control", "cache_hint", "compaction", "container"),
    *("context_hint", "context_management", "diagnostics", "fallback_credit_token", "fallbacks"),
    *("inference_geo", "mcp_servers", "metadata", "output_config", "output_format"),
    *("service_tier", "speed", "store", "stream", "system", "thinking", "thread"),
    *("tool_choice", "tools", "user_profile_id", "workspace_id"),
)
# `MessageCreateParams` and its beta twin in anthropic 2.11. Other keys pass; the API decides.

_HOST_KEYS = frozenset(
    ("context_view", "edges", "graph", "memory", "mode", "nodes", "routes", "skills", "tools")
)
# The host's own keys: never reported as a misspelling of a known one.

_BUDGETS = ("budget_usd", "actor_budget_usd", "daily_budget_usd")
# Refused outside `batch_processing`, because a run without its budget may cost any amount.

_MODES: tuple[str, ...] = get_args(BatchProcessingMode.model_fields["mode"].annotation)

_SERVER_TOOL = re.compile(r"[a-z_]+_20\d{6}")
# The `type` of a tool that the API runs itself, such as `web_search_20250305`.

_PLACES = {
    **dict.fromkeys(MESSAGES_PARAMETERS, "options"),
    **dict.fromkeys(BatchProcessingMode.model_fields, "batch_processing"),
    "budget": "batch_processing.budget_usd",
    "instructions": "system_prompt",
    "system_message": "system_prompt",
}
# Where a key that has no effect beside `model` probably belongs.

_ALIASES = {
    **dict.fromkeys(("batch", "batched", "batching", "batch_mode"), "batch_processing"),
    **dict.fromkeys(("json_schema", "output_format", "output_schema"), "response_format"),
    **dict.fromkeys(("response_model", "response_schema"), "response_format"),
    "system": "system_prompt",
}
# Too different from the known words for difflib, but too costly to ignore silently.


def key_faults(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield ``(path, message)`` for each key of an ``llm`` actor that looks misspelled."""
    if str(data.get("type", "llm")).strip().lower() != "llm":
        return  # the host's other kinds of actor have keys of their own
    yield from _misspelled(data, (), _ACTOR_KEYS)
    yield from misplaced_budgets(data, "batch_processing")
    yield from _tool_definitions(data, ())
    config = data.get("config")
    if isinstance(config, Mapping):
        nested = cast("Mapping[str, Any]", config)
        yield from _misspelled(nested, ("config",), _CONFIG_KEYS)
        for path, text in misplaced_budgets(nested, "config.batch_processing"):
            yield ("config", *path), text
        if "tools" not in data:
            yield from _tool_definitions(nested, ("config",))


def _misspelled(
    data: Mapping[str, Any], path: tuple[str, ...], words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str]]:
    for key in data:
        if not isinstance(cast("object", key), str) or key in _ACTOR_KEYS or key in _HOST_KEYS:
            continue
        meant = _ALIASES.get(key.lower()) or close_word(key, words, cutoff=0.8)
        if meant is not None:
            yield (*path, key), f"unknown key `{key}`; did you mean `{meant}`?"


def misplaced_budgets(data: Mapping[str, Any], place: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield ``(path, message)`` for each budget in a mapping where it would limit nothing.

    ``place`` is the key under which the budgets of runs belong.
    """
    for key in data:
        if not isinstance(cast("object", key), str):
            continue
        meant = key if key in _BUDGETS else close_word(key, _BUDGETS, cutoff=0.85)
        if meant is None:
            continue
        remedy = f"move it under `{place}`"
        if meant == "daily_budget_usd":  # of a ledger, not of an actor
            remedy = "use --daily-budget or CLAUDE_BATCH_DAILY_BUDGET_USD"
        elif meant != key:
            remedy = f"{remedy}, and call it `{meant}`"
        yield (key,), f"`{key}` has no effect here, so nothing would limit the cost; {remedy}"


def _tool_definitions(
    data: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield a fault if the host's ``tools`` have a definition or a function: neither is sent."""
    tools: object = data.get("tools")
    listed = cast("Sequence[object]", tools if isinstance(tools, list | tuple) else [tools])
    for number, tool in enumerate(listed, 1):
        if callable(tool):
            words = (
                "is a function, which a configuration only names (`module:function`); pass it as "
                "`tools=[…]` to Actor, make_actor or load_actor"
            )
        elif isinstance(tool, Mapping) and _is_definition(cast("Mapping[str, Any]", tool)):
            words = (
                "is not a function (`module:function`), so it cannot be a tool; a definition alone "
                "belongs into `options.tools`"
            )
        else:
            continue
        yield (*path, "tools"), f"`tools`: item {number} {words}"
        return


def _is_definition(tool: Mapping[str, Any]) -> bool:
    if isinstance(tool.get("input_schema"), Mapping):
        return "name" in tool
    return _SERVER_TOOL.fullmatch(str(tool.get("type"))) is not None


def unused_keys(actor: ActorConfiguration) -> Iterator[tuple[str, str | None]]:
    """Yield the keys that are kept for a host but mean nothing here, each with its usual place."""
    for key, value in {**(actor.config or {}), **(actor.model_extra or {})}.items():
        if key == "mode" and isinstance(value, str) and value in _MODES:
            yield key, "batch_processing"  # other modes are the host's
        elif key not in _HOST_KEYS and key not in _CONFIG_KEYS:
            yield key, _PLACES.get(key)


def close_word(key: str, words: tuple[str, ...], *, cutoff: float) -> str | None:
    """Return the known word that ``key`` seems to mean; None for a known or unrelated word."""
    if key in words:
        return None
    found = difflib.get_close_matches(key.lower().replace("-", "_"), words, n=1, cutoff=cutoff)
    return found[0] if found else None


def hoist(data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Move the allowed keys of ``config`` to the top level; existing top-level keys win."""
    flat = dict(data)
    config = flat.get("config")
    if not isinstance(config, Mapping):
        return flat, ()
    nested = dict(cast("Mapping[str, Any]", config))
    hoisted = tuple(name for name in _HOISTED if name in nested and name not in flat)
    flat.update((name, nested.pop(name)) for name in hoisted)
    flat["config"] = nested
    return flat, hoisted


# Configuration ------------------------------------------------------------------------------------

KEYS_CHECKED = "keys checked"
"""Validation context of a caller that has already checked `key_faults`."""

DEFAULT_PROVIDER = "anthropic"
"""The default provider of an actor."""

CLAUDE_PROVIDERS = ("anthropic", "claude", "claude-batch")
"""Names that mean Claude; as a prefix before ``/``, they are not part of the model's name."""


def _kind_of_mode(value: object) -> str | None:
    if isinstance(value, bool):
        return "flag"
    return "mode" if isinstance(value, Mapping | BatchProcessingMode) else None


_BatchProcessing = Annotated[
    Annotated[StrictBool, Tag("flag")] | Annotated[BatchProcessingMode, Tag("mode")],
    Discriminator(
        _kind_of_mode,
        custom_error_type="no_mode",
        custom_error_message="neither true nor false nor a mapping",
    ),
]
# Tagged, so that an error is reported once and for the intended variant.


class FixedOptions(dict[str, Any]):
    """Messages parameters whose keys cannot change, because requests are encoded from them once."""

    if not TYPE_CHECKING:  # a type checker would compare each with that of a dictionary

        def __setitem__(self, *_, **__) -> NoReturn:
            raise TypeError(
                "these options cannot be changed; change dict(options), and make another actor or "
                "provider with it"
            )

        __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = __setitem__

        def __reduce__(self):
            return FixedOptions, (dict(self),)


class ActorConfiguration(BaseModel):
    """One actor: its model, system prompt, options and mode, and the host's other keys.

    Immutable. Keys that claude-batch does not define belong to the host: they are carried unchanged
    (``model_extra``) and written back by `to_dict` and `to_yaml`. A key that looks like a
    misspelling of a known one is rejected, and so is any unknown key of ``batch_processing``.

    A nested ``config`` may hold ``provider``, ``model`` or ``actor``, and any of ``description``,
    ``system_prompt``, ``options``, ``response_format``, ``documents``, ``citations``,
    ``model_capabilities``, ``batch_processing``. The latter are read as top-level keys; a top-level
    key takes precedence.

    Raises pydantic's ``ValidationError``; `ActorLoader` converts it to `ActorConfigurationError`.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="allow", frozen=True, validate_default=False, protected_namespaces=()
    )

    name: str = "local/actor"
    """``namespace/name``; a name without a namespace gets ``local/``."""
    type: str = "llm"
    """The host's kind of actor. Only ``llm`` can be used."""
    description: str | None = None
    """Text for people; never sent."""
    version: str | int | float | None = None
    """The host's version; never sent."""
    provider: str | None = None
    """As written; `resolved_provider` is the effective value."""
    model: str | None = None
    """As written; `resolved_model` is the value that is sent."""
    provider_type: str | None = None
    """The host's other name for ``provider``."""
    model_id: str | None = None
    """The host's other name for ``model``."""
    config: dict[str, Any] | None = None
    """The host's nested form, without the keys that move to this class's other fields."""
    system_prompt: str | None = None
    """Sent as ``system``. Blocks (for ``cache_control``) go into ``options.system``."""
    options: dict[str, Any] = Field(default_factory=FixedOptions)
    """Messages parameters, sent unchanged; ``betas`` go to the header. Its keys cannot change."""
    response_format: dict[str, Any] | None = None
    """As written; `response_schema` is the JSON schema in it.

    The schema is sent with every object closed (``additionalProperties: false``), as the API
    requires.
    """
    documents: list[Any] = Field(default_factory=list)
    """Documents of every request, before its own; paths are relative to the YAML file."""
    citations: StrictBool = False
    """Whether answers cite the documents of the actor and of the request."""
    model_capabilities: dict[str, StrictBool] = Field(default_factory=dict[str, StrictBool])
    """The model's capabilities, if claude-batch's table of models is wrong. Never sent."""
    batch_processing: _BatchProcessing = False
    """Whether, and how, requests travel in batches at half the price."""

    _hoisted: tuple[str, ...] = PrivateAttr(default=())
    _envelope: dict[str, Any] | None = PrivateAttr(default=None)
    _identifier: str | None = PrivateAttr(default=None)
    _output_required: bool = PrivateAttr(default=False)
    _functions: tuple[Callable[..., Any], ...] = PrivateAttr(default=())
    _folder: str | None = PrivateAttr(default=None)
    _judge: Callable[[bytes], str | None] | None = PrivateAttr(default=None)

    # --- checks ---------------------------------------------------------------------------------

    @model_validator(mode="wrap")
    @classmethod
    def _read(
        cls, data: Any, handler: Callable[[Any], ActorConfiguration], info: ValidationInfo
    ) -> ActorConfiguration:
        hoisted: tuple[str, ...] = ()
        if isinstance(data, Mapping):
            written = cast("Mapping[str, Any]", data)
            if info.context != KEYS_CHECKED:
                _raise_key_faults(written)
            data, hoisted = hoist(written)
        configuration = handler(data)
        if hoisted:
            configuration._hoisted = hoisted
        return configuration

    @field_validator("name")
    @classmethod
    def _full_name(cls, name: str) -> str:
        namespace, slash, rest = name.strip().partition("/")
        if not slash:
            namespace, rest = "local", namespace
        if not namespace or not rest or "/" in rest:
            raise ValueError(
                f"{name!r} is not a name; write `namespace/name`, or just `name`. Both parts may "
                "have any characters except `/`, and at least one"
            )
        full = f"{namespace}/{rest}"
        if len(full) > LONGEST_ACTOR_NAME:
            raise ValueError(
                f"the name has {len(full):,} characters; at most {LONGEST_ACTOR_NAME} are possible"
            )
        return full

    @field_validator("type")
    @classmethod
    def _lower_type(cls, value: str) -> str:
        return value.strip().lower()

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        return FixedOptions(check_options(options))

    @field_validator("model_capabilities")
    @classmethod
    def _check_capabilities(cls, given: dict[str, bool]) -> dict[str, bool]:
        for name in given:
            if name not in CAPABILITIES:
                known = ", ".join(f"`{each}`" for each in CAPABILITIES)
                raise ValueError(f"`{name}` is not a capability; known: {known}")
        return given

    @field_validator("documents")
    @classmethod
    def _check_documents(cls, documents: list[Any]) -> list[Any]:
        try:
            documents_of(documents)
        except InvalidRequestError as error:
            raise ValueError(str(error)) from None
        return documents

    @field_validator("response_format")
    @classmethod
    def _check_response_format(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema_in(value) is not None:
            checked_schema(value)
        return value

    @field_validator("citations")
    @classmethod
    def _check_citations(cls, citations: bool, info: ValidationInfo) -> bool:
        if citations and (schema := schema_in(info.data.get("response_format"))) is not None:
            try:
                Labels(close_objects(schema))
            except InvalidRequestError as error:
                raise ValueError(str(error)) from None
        return citations

    @model_validator(mode="after")
    def _check_whole(self) -> ActorConfiguration:
        if self.type != "llm":
            return self
        if not self._find_model():
            raise PydanticCustomError(
                "model_missing",
                "`model` is missing; add `model: claude-opus-5-5` (or another Anthropic model)",
            )
        output_config: object = self.options.get("output_config") or {}
        if self.response_schema is not None and (
            not isinstance(output_config, Mapping)
            or cast("Mapping[str, Any]", output_config).get("format") is not None
        ):
            raise PydanticCustomError(
                "format_twice",
                "`response_format` and `options.output_config.format` are alternatives; keep one",
            )
        if self.system_prompt is not None and self.options.get("system") is not None:
            raise PydanticCustomError(
                "system_twice", "`system_prompt` and `options.system` are alternatives; keep one"
            )
        return self

    # --- what it comes to -----------------------------------------------------------------------

    @property
    def resolved_provider(self) -> str:
        """Return the provider's name in lower case, by the host's order; default ``anthropic``.

        The order is ``provider``, ``provider_type``, ``config.provider``, then the part before the
        ``/`` of ``config.actor``, and at last of the model.
        """
        named = self._find_provider()
        if named is None:
            prefix, slash, _ = self._find_model().partition("/")
            named = prefix if slash else DEFAULT_PROVIDER
        return named.strip().lower()

    @property
    def resolved_model(self) -> str:
        """Return the model as it is sent, by the host's order, without the provider's prefix.

        The order is ``model``, ``model_id``, ``config.model``, ``config.actor``. Empty for an actor
        that is not an ``llm`` and names no model.
        """
        return self.model_named(self._find_model())

    def model_named(self, model: str) -> str:
        """Return a model as it is sent: without the name of this actor's provider before it."""
        prefix, slash, rest = model.strip().partition("/")
        provider = self.resolved_provider
        own = CLAUDE_PROVIDERS if provider in CLAUDE_PROVIDERS else (provider,)
        return rest if slash and prefix.strip().lower() in own else model.strip()

    @property
    def batch_mode(self) -> BatchProcessingMode | None:
        """Return how requests are batched; None for a live actor.

        Reads only the YAML: `claude_batch.core.batch_processing.resolve_mode` adds flags and
        environment.
        """
        if isinstance(self.batch_processing, BatchProcessingMode):
            return self.batch_processing
        return BatchProcessingMode() if self.batch_processing is True else None

    @property
    def response_schema(self) -> dict[str, Any] | None:
        """Return the JSON schema of ``response_format``, in whichever form it is written."""
        return schema_in(self.response_format)

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the actor's Messages parameters: options, system prompt and format.

        Without ``model``, ``messages`` and any default. ``max_tokens``, ``temperature``, ``top_p``,
        ``top_k`` and ``stop_sequences`` also count if they stand next to ``model``.
        """
        loose: dict[str, Any] = {}
        for place in (self.config or {}, self.model_extra or {}):
            loose.update((n, place[n]) for n in LOOSE_OPTIONS if place.get(n) is not None)
        parameters = {**loose, **self.options}
        if self.system_prompt:
            parameters["system"] = self.system_prompt
        if (tools := self.toolset) is not None:
            parameters["tools"] = [*(parameters.get("tools") or ()), *tools.definitions]
        if (schema := self.response_schema) is not None:
            output = dict(parameters.get("output_config") or {})
            output["format"] = {"type": "json_schema", "schema": close_objects(schema)}
            parameters["output_config"] = output
        return parameters

    @property
    def toolset(self) -> Toolset | None:
        """Return the functions that the model may call, or None; the first access imports them.

        Includes those of `with_tools`, and the ``module:function`` entries of the host's ``tools``.
        Raises `ActorConfigurationError` if one cannot be imported or is not a tool.
        """
        named = functions_in(self.model_extra or {}, self.config or {})
        folder = self._folder and os.path.abspath(self._folder)
        return toolset_of(named, folder, self._functions)

    def with_tools(self, functions: Iterable[Callable[..., Any]]) -> ActorConfiguration:
        """Return the same actor, whose model may also call these functions.

        Raises `ActorConfigurationError` for one function instead of a list, and for an object that
        cannot be a tool.
        """
        if not isinstance(cast("object", functions), Iterable):
            raise ActorConfigurationError(
                f"tools: {functions!r} is not a list; give [{functions!r}]"
            )
        given = tuple(functions)
        for each in given:
            as_tool(each)  # fail here: an object that is no function may not even be hashable
        own = self.model_copy()
        own._functions = (*self._functions, *given)
        return own

    @property
    def judge(self) -> Callable[[bytes], str | None] | None:
        """Return the caller's answer check; None if only the response format is checked."""
        return self._judge

    @property
    def common_documents(self) -> tuple[Document, ...]:
        """Return ``documents``, with paths relative to the file that names them."""
        return with_documents(documents_of(self.documents), folder=self._folder)

    @property
    def output_required(self) -> bool:
        """Return True if even requests of raw ``params`` must use the response format."""
        return self._output_required

    def with_response_schema(
        self, schema: Mapping[str, Any], judge: Callable[[bytes], str | None] | None = None
    ) -> ActorConfiguration:
        """Return the same actor with this response schema instead of its own.

        ``judge`` receives a Message's JSON and returns what is wrong with it, or None.
        """
        own = self.model_copy(
            update={"response_format": {"type": "json_schema", "schema": dict(schema)}}
        )
        own._output_required = True
        own._judge = judge
        return own

    def in_batches(self) -> ActorConfiguration:
        """Return the same actor with ``batch_processing``."""
        return self.model_copy(update={"batch_processing": True})

    def require_answerable(self) -> None:
        """Raise `ActorConfigurationError` if no provider of claude-batch can answer it."""
        if self.type != "llm":
            raise ActorConfigurationError(
                f"actor {self.name} is of type {self.type!r}, which claude-batch cannot run, "
                "because it does not execute graphs. Use an actor of type `llm`, or let the host "
                "run this one"
            )

    def refuse_budget(self, provider: str) -> None:
        """Raise `ActorConfigurationError` if it has a budget, which this provider cannot keep."""
        mode = self.batch_mode
        if mode and (mode.budget_usd, mode.actor_budget_usd) != (None, None):
            raise ActorConfigurationError(
                f"actor {self.name} has a budget, which {provider!r} does not keep; remove the "
                "budget, or bind the actor to a ClaudeBatchProvider"
            )

    def digest_fields(self) -> bytes:
        """Return the fields that determine the answers: part of a run's identity.

        Sorted compact JSON of provider, model and Messages parameters. Name, description,
        ``batch_processing`` and the host's keys are left out, because they do not change the
        request. All names of Claude count as one. Raises `ActorConfigurationError` for options that
        are not JSON.
        """
        provider = self.resolved_provider
        fields = {
            "provider": DEFAULT_PROVIDER if provider in CLAUDE_PROVIDERS else provider,
            "model": self.resolved_model,
            "parameters": self.parameters,
        }
        try:
            return msgspec.json.encode(fields, enc_hook=plain_text, order="deterministic")
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ActorConfigurationError(
                f"actor {self.name}: its options cannot be written as JSON: {error}"
            ) from None

    # --- writing --------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return what was written, as plain values: unset stays unset, nested stays nested.

        Durations become text (``30s``), and the name is written in full. An actor of a nested file
        comes with all of that file: its other actors and its other keys (``cleveragents``,
        ``routes``, …) are as they were read, and it is the default actor. So reading the result
        again gives an equal configuration.
        """
        written = self.model_dump(exclude_unset=True, warnings=False)
        if isinstance(self.batch_processing, BatchProcessingMode) and "batch_processing" in written:
            written["batch_processing"] = self.batch_processing.model_dump(
                mode="json", exclude_unset=True
            )
        if self._hoisted:
            config = written.setdefault("config", {})
            config.update((name, written.pop(name)) for name in self._hoisted if name in written)
        if self._identifier is None or self._envelope is None:
            return written
        if written.get("name") == _named_after(self._identifier):
            del written["name"]
        actors = {
            key: written if str(key) == self._identifier else sibling
            for key, sibling in self._envelope["actors"].items()
        }
        return {**self._envelope, "actors": actors}

    def to_yaml(self) -> str:
        """Return `to_dict` as YAML. Raises `ActorConfigurationError` for unsupported values."""
        # Imported here, because most programs write no actor, and PyYAML is large.
        from claude_batch.core.yaml_text import yaml_of

        written = self.to_dict()
        try:
            return yaml_of(written)
        except ValueError as error:
            raise ActorConfigurationError(
                f"actor {self.name} cannot be written as YAML: {error}"
            ) from None

    def in_envelope(self, identifier: str, envelope: Mapping[str, Any]) -> ActorConfiguration:
        """Return the same actor as ``identifier`` of a nested file (used by the loader)."""
        own = self.model_copy()
        own._identifier = identifier
        actors = cast("Mapping[Any, Any]", envelope["actors"])
        siblings = {key: None if str(key) == identifier else actors[key] for key in actors}
        own._envelope = {**envelope, "actors": siblings}
        header = cast("Mapping[str, Any]", envelope.get("cleveragents") or {})
        if "default_actor" in header or len(actors) > 1:
            # First, where people look for it, unless the file has it elsewhere.
            own._envelope = {"cleveragents": None, **own._envelope}
            own._envelope["cleveragents"] = {**header, "default_actor": identifier}
        return own

    def in_folder(self, folder: str) -> ActorConfiguration:
        """Return the same actor as read from a file in this folder (used by the loader)."""
        uses = self.documents or functions_in(self.model_extra or {}, self.config or {})
        if not uses or not folder:
            return self
        own = self.model_copy()
        own._folder = folder
        return own

    # --- the host's order -----------------------------------------------------------------------

    def _find_provider(self) -> str | None:
        config = self.config or {}
        for named in (self.provider, self.provider_type, config.get("provider")):
            if isinstance(named, str) and named.strip():
                return named
        # `config.actor` names both provider and model, so it sets the provider only if it also sets
        # the model.
        actor = config.get("actor")
        if isinstance(actor, str) and "/" in actor and self._find_model() == actor:
            return actor.partition("/")[0]
        return None

    def _find_model(self) -> str:
        config = self.config or {}
        for named in (self.model, self.model_id, config.get("model"), config.get("actor")):
            if isinstance(named, str) and named.strip():
                return named.strip()
        return ""


_ACTOR_KEYS = (*ActorConfiguration.model_fields, *LOOSE_OPTIONS)


# --- small things ---------------------------------------------------------------------------------


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return Messages parameters that an actor or a request may set. Raises ``ValueError``."""
    for name in options:
        if not isinstance(cast("object", name), str):
            raise ValueError(f"a name in `options` must be a text, not {name!r}")
        if name == "messages":
            raise ValueError("`messages` is set in a request, not in the actor's options")
        if name == "model":
            raise ValueError("write `model` beside `options`, not inside")
        if (meant := close_word(name, MESSAGES_PARAMETERS, cutoff=0.85)) is not None:
            raise ValueError(
                f"`{name}` is not a parameter of the Messages API; did you mean `{meant}`?"
            )
    betas = options.get("betas")
    if betas is not None and not is_list_of_text(betas):
        raise ValueError("`betas` must be a list of names, for example [context-1m-2025-08-07]")
    profile = options.get("user_profile_id")
    if profile is not None and not isinstance(profile, str):
        raise ValueError(f"`user_profile_id` must be a text, not {type(profile).__name__}")
    if (fault := kind_fault(options)) is not None:
        raise ValueError(fault)
    return options


def _raise_key_faults(data: Mapping[str, Any]) -> None:
    faults = [
        InitErrorDetails(
            type=PydanticCustomError("misspelled_key", "{text}", {"text": text}),
            loc=path,
            input=None,
        )
        for path, text in key_faults(data)
    ]
    if faults:
        raise ValidationError.from_exception_data("ActorConfiguration", faults)


def _named_after(identifier: str) -> str:
    return identifier if "/" in identifier else f"local/{identifier}"
