"""Convert an actor and a request to Messages params: merged once, encoded once.

The common part of an actor's requests is computed when a `RequestEncoder` is created, so that a run
of 100,000 prompts pays for it once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from dataclasses import fields as fields_of
from functools import cached_property
from types import UnionType
from typing import Any, Final, TypeAlias, cast

import msgspec

from claude_batch.actor.configuration import (
    MESSAGES_PARAMETERS,
    ActorConfiguration,
    check_options,
)
from claude_batch.actor.documents import (
    DocumentLike,
    Placing,
    Shared,
    documents_of,
    inside,
    messages_with,
)
from claude_batch.actor.output import (
    Labels,
    OutputFormat,
    checked_schema,
    output_format_of,
    written_kind,
)
from claude_batch.actor.sdk_blocks import plain_messages
from claude_batch.core.errors import InvalidRequestError
from claude_batch.wire.encoding import EncodedRequest, PromptParams, encode_params, not_finite
from claude_batch.wire.inbound import mapping_or_none
from claude_batch.wire.limits import API_VERSION, SAMPLING_PARAMETERS, takes_sampling
from claude_batch.wire.messages import cites
from claude_batch.wire.schemas import close_objects

_log = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS = 4096
"""Default ``max_tokens`` if request, actor and provider set none (the API requires it).

Small enough for every model of Anthropic's, and a limit on the cost of an answer.
"""


@dataclass(frozen=True, slots=True)
class ActorRequest:
    """One request to an actor: exactly one of ``prompt``, ``messages`` and ``params``.

    ``documents`` go with a prompt or with messages: they stand before the first user's text.

    Raises `InvalidRequestError` for none or several of them, for a key with a lone surrogate, and
    for what the API would reject only hours later: an empty prompt, no messages, messages without
    role or content.
    """

    prompt: str | None = None
    """A user's turn, as text."""
    _: KW_ONLY
    messages: Sequence[Mapping[str, Any]] | None = None
    """A conversation, in the API's form: ``[{"role": "user", "content": …}, …]``.

    A content may hold the SDK's blocks, such as those of `ActorResponse.message`."""
    params: Mapping[str, Any] | None = None
    """Raw Messages params; only a missing model, ``max_tokens`` and ``system`` are filled in."""
    key: str | None = None
    """The caller's own name for the request, unique in a run; the result carries it too.

    Without a key, the id of a request in a run is its number, from 1."""
    documents: Sequence[DocumentLike] = ()
    """The request's documents: paths, bytes, URLs, ids of uploaded files, or `Document`."""
    citations: bool = False
    """Whether the answer cites the documents."""
    model: str | None = None
    """The model that answers this request, instead of the actor's."""
    options: Mapping[str, Any] | None = None
    """Messages parameters of this request, which take precedence over the actor's.

    ``{"temperature": None}`` removes the actor's temperature."""
    output_format: type[Any] | UnionType | Mapping[str, Any] | None = None
    """The format of this answer, instead of the actor's: a type, or a JSON schema."""
    context: Any = field(default=None, compare=False)
    """Any object. It is not sent; the result of the request carries it too.

    The ledger stores a JSON value, so that other processes get it with the result. Any other object
    stays in this process."""

    def __post_init__(self) -> None:
        if (
            type(self.prompt) is str
            and self.messages is None
            and self.params is None
            and (self.key is None or (type(self.key) is str and _is_plain(self.key)))
            and self.prompt
            and not self.prompt.isspace()
            and self.documents == ()
            and self.citations is False
            and self.model is None
            and self.options is None
            and self.output_format is None
        ):
            return  # by far the most frequent kind, and always valid
        if self.key is not None and not (isinstance(cast("object", self.key), str) and self.key):
            raise InvalidRequestError(f"a key must be a non-empty text, not {self.key!r}")
        try:
            self._check()
        except InvalidRequestError as error:
            raise error.naming(self.key) from None

    def _check(self) -> None:
        if self.key is not None and not is_unicode(self.key):
            raise InvalidRequestError(
                "this key has a lone surrogate, which occurs in file names that are not UTF-8; "
                "give it another key"
            )
        if self.key is not None and "\0" in self.key:
            raise InvalidRequestError(
                f"a key must not have a NUL character, and {self.key!r} has one"
            )
        given = (self.prompt is not None) + (self.messages is not None) + (self.params is not None)
        if given != 1:
            what = "none is given" if given == 0 else f"{given} are given"
            raise InvalidRequestError(
                f"give exactly one of `prompt`, `messages` and `params`; {what}"
            )
        if self.prompt is not None:
            _check_prompt(self.prompt)
        elif self.messages is not None:
            _check_messages(self.messages)
            object.__setattr__(self, "messages", plain_messages(self.messages))
        else:
            if not isinstance(cast("object", self.params), Mapping):
                raise InvalidRequestError(f"`params` must be a mapping, not {_kind(self.params)}")
            params = dict(self.params or {})
            if "messages" in params:
                params["messages"] = plain_messages(params["messages"])
            object.__setattr__(self, "params", params)
        self._check_documents()
        if self.differs:
            self._check_overrides()

    @property
    def differs(self) -> bool:
        """Return whether model, options or format differ from the actor's."""
        return not (self.model is None and self.options is None and self.output_format is None)

    @property
    def own_prompt(self) -> str | None:
        """Return the prompt if the rest of the params is the actor's, else None."""
        return None if self.documents or self.differs else self.prompt

    @property
    def output(self) -> OutputFormat[Any] | None:
        """Return the parser of ``output_format``; None without one, or for a JSON schema.

        Raises `InvalidRequestError` for a type that the API does not support.
        """
        asked = self.output_format
        return None if asked is None or isinstance(asked, Mapping) else output_format_of(asked)

    def _check_overrides(self) -> None:
        model, options = cast("object", self.model), cast("object", self.options)
        if model is not None and not (isinstance(model, str) and model.strip()):
            raise InvalidRequestError(f"`model` must be a non-empty text, not {_kind(model)}")
        if options is not None and not isinstance(options, Mapping):
            raise InvalidRequestError(f"`options` must be a mapping, not {_kind(options)}")
        if self.options is not None:
            object.__setattr__(self, "options", dict(self.options))
        if self.params is not None and not (model is None and options is None):
            raise InvalidRequestError(
                "`model` and `options` can be used with `prompt` or `messages`; in raw `params`, "
                "write them there"
            )

    def _check_documents(self) -> None:
        documents = documents_of(self.documents)
        object.__setattr__(self, "documents", documents)
        if not isinstance(cast("object", self.citations), bool):
            raise InvalidRequestError("`citations` must be true or false")
        if self.citations and not documents:
            raise InvalidRequestError("`citations` need `documents`, but there are none")
        if documents and self.params is not None:
            raise InvalidRequestError(
                "`documents` can be used with `prompt` or `messages`; in raw `params`, add the "
                "blocks yourself"
            )

    @classmethod
    def of(cls, value: RequestLike, *, key: str | None = None) -> ActorRequest:
        """Convert a prompt, a mapping (one line of an input file) or a request to a request.

        The mapping holds one of ``prompt``, ``messages`` and ``params``, and optionally ``id`` (or
        ``key``), ``documents``, ``citations``, ``model``, ``options``, ``response_format`` and
        ``context``. ``key`` is used if the value has none. Raises `InvalidRequestError`, also if
        two keys contradict each other.
        """
        if isinstance(value, str):
            return cls(value, key=key)
        if isinstance(value, ActorRequest):
            request = value
        elif isinstance(value, KeyedPrompt):
            request = cls(value.prompt, key=value.key)
        elif isinstance(cast("object", value), Mapping):
            request = cls._of_mapping(value)
        else:
            raise InvalidRequestError(
                f"a request must be a text, an ActorRequest or a mapping, not {_kind(value)}",
                key=key,
            )
        if key is None or request.key == key:
            return request
        if request.key is not None:
            raise InvalidRequestError(f"it already has the key {request.key!r}", key=key)
        return replace(request, key=key)

    @classmethod
    def _of_mapping(cls, value: Mapping[str, Any]) -> ActorRequest:
        fields = dict(value)
        keys = [fields.pop("id", None), fields.pop("key", None)]
        if None not in keys and keys[0] != keys[1]:
            raise InvalidRequestError("`id` and `key` mean the same, but differ; give one of them")
        key: Any = keys[0] if keys[0] is not None else keys[1]
        if type(key) is int:  # a line's number, as people number them
            key = str(key)
        if unknown := [name for name in fields if name not in _FIELDS]:
            raise InvalidRequestError(
                _unknown_key_fault(fields, unknown), key=key if isinstance(key, str) else None
            )
        asked: object = fields.get("response_format")
        if asked is not None and not isinstance(asked, Mapping):
            # Pydantic evaluates a text as a Python expression, and an input line is data.
            raise InvalidRequestError(
                f"`response_format` must be a JSON schema, not {_kind(asked)}",
                key=key if isinstance(key, str) else None,
            )
        return cls(key=key, output_format=fields.pop("response_format", None), **fields)


# Frozen data classes with many fields are slow to make, and a large run is made of these.
class KeyedPrompt(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, rename={"key": "id"}
):
    """A valid `ActorRequest` that has only a prompt and a key."""

    prompt: str
    key: str

    @classmethod
    def of(cls, value: object) -> KeyedPrompt | None:
        """Convert a mapping of ``id`` and ``prompt``; None for anything else, valid or not."""
        if type(value) is cls:
            return value
        if type(value) is not dict or len(fields := cast("dict[str, Any]", value)) != 2:
            return None
        key, prompt = fields.get("id"), fields.get("prompt")
        if type(key) is not str or type(prompt) is not str:
            return None
        found = cls(prompt, key)
        return found if found.is_valid() else None

    def is_valid(self) -> bool:
        """Return whether `ActorRequest` accepts the prompt and the key; False if unsure."""
        prompt = self.prompt
        return _is_plain(self.key) and bool(prompt) and not prompt.isspace()


RequestLike: TypeAlias = str | ActorRequest | KeyedPrompt | Mapping[str, Any]
"""Anything that can be a request: a prompt, an `ActorRequest`, or a mapping as in an input file.

A `KeyedPrompt` is such a mapping, read from a file and checked."""

Requests: TypeAlias = Iterable[RequestLike] | AsyncIterable[RequestLike]
"""Many requests, read as they are needed."""

_FIELDS = {each.name for each in fields_of(ActorRequest)} - {"key", "output_format"}
_FIELDS.add("response_format")
# Keys of a mapping that is a request, apart from `id` and `key`.


def _unknown_key_fault(fields: Mapping[str, Any], unknown: Sequence[str]) -> str:
    """Return what is wrong with a mapping that has unknown keys; other batch files are known."""
    if set(fields) == {"custom_id", "params"}:
        return (
            "this is a line of the Messages API's own batch format, in which `custom_id` is the "
            "name of a request. Rename `custom_id` to `id`, and keep `params`"
        )
    if isinstance(fields.get("requests"), list):
        return (
            "this is a batch body of the Messages API, which holds many requests; write each item "
            'of `requests` as a line of its own: {"id": …, "params": …}'
        )
    known = (
        "a request has `id` and one of `prompt`, `messages` and `params`, and may have "
        "`documents`, `citations`, `model`, `options`, `response_format` and `context`"
    )
    if "custom_id" in fields:
        return f"unknown key `custom_id`; the name of a request is its `id` here; {known}"
    return f"unknown key `{unknown[0]}`; {known}"


_JSON_TYPES: Final = (str, int, float, bool, type(None))


def json_context(context: object) -> bytes | None:
    """Return a context as JSON for the ledger; None if it is not a JSON value.

    A value that would come back as another one (a tuple, a time, an `Enum`, a mapping with numbers
    as keys) is not a JSON value.
    """
    try:
        encoded = msgspec.json.encode(context)
        is_same = msgspec.json.decode(encoded) == context and _is_exact(context)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return encoded if is_same else None


def _is_exact(value: object) -> bool:
    """Return whether the texts and numbers in a value are of no other types, such as `IntEnum`."""
    if isinstance(value, dict):
        items = cast("dict[object, object]", value)
        return all(type(name) is str for name in items) and all(map(_is_exact, items.values()))
    if isinstance(value, list):
        return all(map(_is_exact, cast("list[object]", value)))
    return type(value) in _JSON_TYPES


def _is_plain(key: str) -> bool:
    return bool(key) and key.isascii() and "\0" not in key


def is_unicode(text: str) -> bool:
    """Return False for a text with a lone surrogate, which cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} ({str(value)[:40]!r})"


def _check_prompt(prompt: object) -> None:
    if not isinstance(prompt, str):
        raise InvalidRequestError(f"a prompt must be a text, not {_kind(prompt)}")
    # The API rejects text without a single visible character.
    if not prompt or prompt.isspace():
        raise InvalidRequestError("the prompt is empty")


def _check_messages(messages: object) -> None:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        kind = _kind(cast("object", messages))
        raise InvalidRequestError(f"`messages` must be a list of messages, not {kind}")
    if not messages:
        raise InvalidRequestError("`messages` is empty")
    for number, message in enumerate(cast("Sequence[object]", messages), 1):
        if not isinstance(message, Mapping):
            raise InvalidRequestError(
                f"message {number} must be a mapping of role and content, not {_kind(message)}"
            )
        for name in ("role", "content"):
            if name not in message:
                raise InvalidRequestError(f"message {number} has no `{name}`")


class RequestEncoder:
    """Encodes the requests of one actor; create one encoder and reuse it. Thread-safe."""

    def __init__(
        self,
        configuration: ActorConfiguration,
        default_options: Mapping[str, Any] | None = None,
        *,
        batch: bool = True,
        own: ActorRequest | None = None,
    ) -> None:
        """``default_options`` are Messages parameters that fill what the actor does not set.

        A default option that the model does not support is dropped here, with one warning.
        ``batch``: whether the rules that hold only in batches apply. ``own``: a request whose
        model, options and format all requests of this encoder share. Raises
        `ActorConfigurationError` for an actor that cannot be used, and `InvalidRequestError` for
        an unusable ``own``.
        """
        configuration.require_answerable()
        self._batch = batch
        self._configuration = configuration
        self._default_options = default_options
        self._derived: dict[object, RequestEncoder] = {}
        model = configuration.resolved_model
        parameters = configuration.parameters
        capabilities = configuration.model_capabilities
        if own is not None:
            parameters = _with_own(configuration, parameters, own)
            if own.model is not None and configuration.model_named(own.model) != model:
                # What the actor says of its own model holds for no other.
                model, capabilities = configuration.model_named(own.model), {}
        defaults = dict(default_options or {})
        default_betas = defaults.pop("betas", None)
        betas = tuple[str, ...](parameters.pop("betas", None) or default_betas or ())
        for name in SAMPLING_PARAMETERS:
            if defaults.get(name) is not None and not takes_sampling(model):
                _log.warning("%s does not accept `%s`: the default is dropped", model, name)
                del defaults[name]
        # A header of the SDK's, not a part of the body.
        user_profile: str | None = parameters.pop("user_profile_id", None)
        if user_profile is not None:
            # The API refuses a request whose body names another profile than the header.
            defaults.pop("user_profile_id", None)
        limits = (parameters.pop("max_tokens", None), defaults.pop("max_tokens", None))
        max_tokens = next((each for each in limits if each is not None), DEFAULT_MAX_TOKENS)
        self._name = configuration.name
        self._known_params = {"model", "messages", *MESSAGES_PARAMETERS}
        self._warn_unknown(parameters)
        self._constant: dict[str, Any] = {"model": model, "max_tokens": max_tokens, **parameters}
        self._options: dict[str, Any] = {
            "defaults": {n: value for n, value in defaults.items() if n not in self._constant},
            "betas": betas,
            "user_profile": user_profile,
            "batch": batch,
            "capabilities": capabilities,
        }
        self._raw: dict[str, Any] = {
            name: self._constant[name]
            for name in ("model", "max_tokens", "system")
            if name in self._constant
        }
        self._format: object = (mapping_or_none(parameters.get("output_config")) or {}).get(
            "format"
        )
        # A format that was requested by name (`output_format`) applies to raw params too.
        self._formats_raw: bool = configuration.output_required or (
            own is not None and own.output_format is not None
        )
        self._documents = configuration.common_documents
        self._citations = configuration.citations
        # Most requests of a run differ only in their prompt, so only the prompt is encoded for
        # each.
        self._prompts: PromptParams | None = None
        if self._documents:
            return  # files may change between two requests
        with suppress(InvalidRequestError):  # each request raises it later, under its own key
            self._prompts = PromptParams(self._with_prompt, **self._options)

    def has_documents(self, request: ActorRequest) -> bool:
        """Return whether the request has documents of its own or the actor's, to be read."""
        return bool(request.documents or self._documents)

    def encode(self, request: RequestLike, placing: Placing | None = None) -> EncodedRequest:
        """Return the request as bytes, with its lane's headers. Raises `InvalidRequestError`.

        ``placing`` is called for each document that is large enough to be uploaded.
        """
        if not isinstance(request, KeyedPrompt | str | ActorRequest):
            request = ActorRequest.of(request)
        try:
            if isinstance(request, KeyedPrompt):
                prompt = request.prompt
            elif isinstance(request, str):
                _check_prompt(request)
                prompt = request
            elif request.differs:
                plain = replace(request, model=None, options=None, output_format=None)
                return self._for(request).encode(plain, placing)
            else:
                prompt = None if request.documents else request.prompt
            if self._prompts is not None and prompt is not None:
                return self._prompts.encode(prompt)
            return self._encode_whole(ActorRequest.of(request), placing)
        except InvalidRequestError as error:
            raise error.naming(None if isinstance(request, str) else request.key) from None

    def _encode_whole(self, request: ActorRequest, placing: Placing | None) -> EncodedRequest:
        # The same keys in the same order every time: equal requests have equal bytes, and the API
        # caches a prefix that all of them share.
        params: dict[str, Any]
        options, documents = {**self._options}, (*self._documents, *request.documents)
        shared: Shared | None = None
        if request.params is not None:
            params = self._raw_params(request.params)
            options |= {"defaults": None, "betas": ()}
            if params.get("user_profile_id") is not None:
                options["user_profile"] = None
        elif request.prompt is not None:
            params = self._with_prompt(request.prompt)
        else:
            params = {**self._constant, "messages": request.messages}
        if documents and request.params is None:  # raw params hold their own blocks
            citations = request.citations or self._citations
            shared = messages_with(
                documents, params["messages"], model=params["model"], citations=citations
            )
            params["messages"] = shared.messages
        if "output_config" in params and cites(params.get("messages")):
            params = self._in_fields(params)
        if shared is None or not shared.contents or not self._batch:
            return encode_params(params, **options)
        named = encode_params({**params, "messages": shared.named()}, **options)
        if placing is None or named.headers.api_version != API_VERSION:
            # Under older versions of the API, files need a beta, and so a separate lane.
            placing = inside
        whole = encode_params({**params, "messages": shared.placed(placing)}, **options)
        return EncodedRequest(whole.params, whole.headers, named.params)

    def _for(self, request: ActorRequest) -> RequestEncoder:
        """Return the encoder of a request's own model, options and format."""
        key = _own_key(request)
        found = None if key is None else self._derived.get(key)
        if found is None:
            found = RequestEncoder(
                self._configuration, self._default_options, batch=self._batch, own=request
            )
            if key is not None:
                if len(self._derived) >= RequestEncoders.KEPT:
                    self._derived.clear()
                self._derived[key] = found
        return found

    def _raw_params(self, own: Mapping[str, Any]) -> dict[str, Any]:
        params = {**self._raw, **own}
        if not self._known_params.issuperset(params):
            self._warn_unknown(params)
        if self._formats_raw:
            params["output_config"] = self._with_format(params.get("output_config"))
        return params

    def _with_format(self, own: object) -> dict[str, Any]:
        if own is not None and not isinstance(own, Mapping):
            raise InvalidRequestError(f"`output_config` must be a mapping, not {_kind(own)}")
        config = dict(cast("Mapping[str, Any]", own or {}))
        if config.get("format") is not None:
            raise InvalidRequestError(
                "`output_format` and its own `output_config.format` are alternatives; keep one"
            )
        return {**config, "format": self._format}

    def _warn_unknown(self, params: Mapping[str, Any]) -> None:
        """Warn about unknown parameters, each once; they are sent anyway."""
        for name in params.keys() - self._known_params:
            self._known_params.add(name)
            _log.warning(
                "actor %s: `%s` is not a known parameter of the Messages API; it is sent unchanged",
                self._name,
                name,
            )

    def _in_fields(self, params: dict[str, Any]) -> dict[str, Any]:
        """Request the actor's schema as labelled fields, in the system prompt.

        The API rejects a schema together with citations.
        """
        given = mapping_or_none(params["output_config"]) or {}
        own = mapping_or_none(self._format) or {}
        if given.get("format") is not self._format or not isinstance(own.get("schema"), Mapping):
            return params  # another schema, or none: encoding reports what is not a format
        config = {name: value for name, value in given.items() if name != "format"}
        words = self._instruction
        system: object = params.get("system")
        if isinstance(system, list):
            system_prompt: object = [*cast("list[object]", system), {"type": "text", "text": words}]
        else:
            system_prompt = f"{system}\n\n{words}" if system else words
        built = {**params, "output_config": config, "system": system_prompt}
        if not config:
            del built["output_config"]
        return built

    @cached_property
    def _instruction(self) -> str:
        return Labels(self._constant["output_config"]["format"]["schema"]).instruction()

    def _with_prompt(self, prompt: str) -> dict[str, Any]:
        return {**self._constant, "messages": [{"role": "user", "content": prompt}]}


def _own_key(request: ActorRequest) -> object | None:
    """Return what requests with the same model, options and format share, or None."""
    kind: object = request.output_format
    schema: object = None
    if isinstance(kind, Mapping):
        kind, schema = None, request.output_format
    try:
        # In the given order, in which they are sent: what a request sends must not depend on
        # the requests before it.
        written = msgspec.json.encode([request.options, schema])
        key = (request.model, written, kind, written_kind(kind))
        hash(key)
        if b"null" in written and not_finite([request.options, schema]) is not None:
            return None  # written as null, which means another thing
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None  # encoding reports what is not JSON
    return key


def _with_own(
    configuration: ActorConfiguration, parameters: dict[str, Any], own: ActorRequest
) -> dict[str, Any]:
    """Return an actor's parameters with those of a request, which take precedence."""
    try:
        options = check_options(dict(own.options or {}))
        output_config: dict[str, Any] = {
            **(parameters.get("output_config") or {}),
            **(options.get("output_config") or {}),
        }
        if own.output_format is not None:
            if configuration.output_required:
                raise ValueError(
                    "the call and the request both have an `output_format`; keep one of them"
                )
            output_config["format"] = {"type": "json_schema", "schema": _schema_of(own)}
    except ValueError as error:
        raise InvalidRequestError(str(error)) from None
    merged: dict[str, Any] = {**parameters, **options, "output_config": output_config or None}
    return {name: value for name, value in merged.items() if value is not None}


def _schema_of(request: ActorRequest) -> dict[str, Any]:
    """Return the schema of a request's own format, as it is sent. Raises ``ValueError``."""
    if (output := request.output) is not None:
        return close_objects(output.schema)
    try:
        return close_objects(checked_schema(cast("Mapping[str, Any]", request.output_format)))
    except ValueError as error:
        raise ValueError(f"output_format: {error}") from None


class RequestEncoders:
    """The encoders of the most recently used actors, each created once. Thread-safe."""

    KEPT = 64

    def __init__(
        self, default_options: Mapping[str, Any] | None = None, *, batch: bool = True
    ) -> None:
        """Takes the arguments of `RequestEncoder`, except the configuration."""
        self.default_options: dict[str, Any] = dict(default_options or {})
        self._batch = batch
        self._made: dict[int, tuple[ActorConfiguration, RequestEncoder]] = {}

    def of(self, configuration: ActorConfiguration) -> RequestEncoder:
        """Return an actor's encoder. Raises `ActorConfigurationError` unless it is an ``llm``."""
        # By identity, because hashing a configuration would cost more than it saves. The entry
        # holds the configuration, so that no other object gets its id while the entry lives.
        made = self._made.get(id(configuration))
        if made is None or made[0] is not configuration:
            if len(self._made) >= self.KEPT:
                self._made.clear()
            encoder = RequestEncoder(configuration, self.default_options, batch=self._batch)
            made = self._made[id(configuration)] = (configuration, encoder)
        return made[1]


def check_requests(requests: object) -> None:
    """Raise `InvalidRequestError` for one request if many are expected.

    A text is also an iterable of texts: each letter would become a paid request.
    """
    if isinstance(requests, str | bytes | Mapping | ActorRequest):
        one = _kind(cast("object", requests))
        raise InvalidRequestError(f"requests must be a list or another iterable, not one {one}")
    if isinstance(requests, set | frozenset):
        raise InvalidRequestError(
            "requests must be a list, not a set: its order is another one in each process, so the "
            "same requests would be another run; give sorted(…) or list(…)"
        )
    if None in (getattr(requests, "gi_frame", 0), getattr(requests, "ag_frame", 0)):
        raise InvalidRequestError(
            "requests must be a list or a new generator, not one that has ended: it yields nothing "
            "more"
        )
    if hasattr(requests, "shape") and hasattr(requests, "columns"):
        raise InvalidRequestError(  # iterating a data frame yields the names of its columns
            f"requests must be a list, not a {type(requests).__name__}; give a column of prompts, "
            "such as frame['prompt'], or all rows: frame.to_dict('records') of pandas, or "
            "frame.to_dicts() of polars"
        )
    if not isinstance(requests, Iterable | AsyncIterable) and not hasattr(requests, "__getitem__"):
        raise InvalidRequestError(
            f"requests must be a list or another iterable, not {_kind(requests)}"
        )


def check_synchronous(requests: object) -> None:
    """Raise `InvalidRequestError` for requests that a synchronous method cannot read."""
    check_requests(requests)
    if isinstance(requests, AsyncIterable) and not isinstance(requests, Iterable):
        raise InvalidRequestError(
            "requests can only be read asynchronously, which a synchronous method cannot do; "
            "call the method without _sync, or give a list"
        )
