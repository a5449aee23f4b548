"""Steps for the actor room: YAML in, params out, answers back."""

from __future__ import annotations

import json
import logging
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import parse
from behave import given, register_type, then, use_step_matcher, when
from behave.runner import Context
from tables import rule

import claude_batch as cb
from claude_batch.actor import request as request_module
from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.loader import ActorLoader
from claude_batch.actor.request import (
    ActorRequest,
    RequestEncoder,
    RequestEncoders,
    build_params,
    check_requests,
    encode,
)
from claude_batch.actor.response import ActorResponse, ActorResult
from claude_batch.core.errors import (
    ActorConfigurationError,
    InvalidRequestError,
    LiveRequestError,
    MissingResultError,
)

use_step_matcher("parse")


@parse.with_pattern(r'[{\["0-9].*')
def _parse_json(text: str) -> str:
    """Where JSON stands in a step; without a pattern of its own it would swallow other steps."""
    return text


register_type(Json=_parse_json)


def _folder(context: Context) -> Path:
    context.actor_folder = context.tmp
    return context.tmp


def _path(context: Context) -> Path:
    return _folder(context) / "actor.yaml"


# --- files ----------------------------------------------------------------------------------------


@given("an actor file")
def _(context: Context) -> None:
    _path(context).write_text(context.text + "\n", encoding="utf-8")


@given('an actor file of the bytes "{escaped}"')
def _(context: Context, escaped: str) -> None:
    raw = escaped.encode("latin-1").decode("unicode_escape").encode("latin-1")
    _path(context).write_bytes(raw)


@given("an actor file that is nested {levels:d} levels deep")
def _(context: Context, levels: int) -> None:
    _path(context).write_text("model: m\nx: " + "[" * levels + "]" * levels + "\n")


def _load(context: Context, load: Any) -> None:
    context.actor = context.actors = context.actor_error = None
    try:
        loaded = load()
    except ActorConfigurationError as error:
        context.actor_error = error
        return
    if isinstance(loaded, list):
        context.actors = loaded
    else:
        context.actor = loaded


@when("the actor file is loaded")
def _(context: Context) -> None:
    _load(context, lambda: ActorLoader.load(_path(context)))


@when('the actor file is loaded as "{name}"')
def _(context: Context, name: str) -> None:
    _load(context, lambda: ActorLoader.load(_path(context), name=name))


@when('the actor file "{name}" is loaded')
def _(context: Context, name: str) -> None:
    path = f"{_folder(context)}/{name}".replace("\\0", "\0")
    _load(context, lambda: ActorLoader.load(path))


@when("all actors of the file are loaded")
def _(context: Context) -> None:
    _load(context, lambda: ActorLoader.load_all(_path(context)))


@when("the actor mapping {mapping:Json} is loaded")
def _(context: Context, mapping: str) -> None:
    _load(context, lambda: ActorLoader.from_mapping(json.loads(mapping)))


@when("the actor mapping with the key 5 is loaded")
def _(context: Context) -> None:
    data: Any = {"model": "m", 5: "x"}
    _load(context, lambda: ActorLoader.from_mapping(data))


@when("the actor file is checked")
@when('the actor file "{name}" is checked')
def _(context: Context, name: str = "actor.yaml") -> None:
    context.actor_faults = ActorLoader.check(_folder(context) / name)


@given("an actor made with {mapping:Json}")
def _(context: Context, mapping: str) -> None:
    context.actor = ActorConfiguration.model_validate(json.loads(mapping))


# --- what was loaded ------------------------------------------------------------------------------


def _loaded(context: Context) -> ActorConfiguration:
    error = getattr(context, "actor_error", None)
    assert error is None, error
    return context.actor


def _field(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name)
    return value


@then("the actor's fields are")
def _(context: Context) -> None:
    actor = _loaded(context)
    for row in context.table:
        actual = _field(actor, row["field"])
        assert actual == json.loads(row["value"]), (row["field"], actual)


@then("the actor's batch mode is")
def _(context: Context) -> None:
    mode = _loaded(context).batch_mode
    expected = dict(context.table[0].items())
    actual = {name: str(getattr(mode, name)) for name in expected}
    assert actual == expected, actual


@then('the actor\'s name is "{name}"')
def _(context: Context, name: str) -> None:
    assert _loaded(context).name == name, context.actor.name


@then('the actor\'s provider is "{provider}" and its model "{model}"')
def _(context: Context, provider: str, model: str) -> None:
    actor = _loaded(context)
    actual = (actor.resolved_provider, actor.resolved_model)
    assert actual == (provider, model), actual


@then('the actors are "{names}" of types "{types}"')
def _(context: Context, names: str, types: str) -> None:
    assert context.actor_error is None, context.actor_error
    assert [actor.name for actor in context.actors] == names.split(", ")
    assert [actor.type for actor in context.actors] == types.split(", ")


@then("each of the actors reads back equal from its own YAML's mapping")
def _(context: Context) -> None:
    for number, actor in enumerate(context.actors):
        path = _folder(context) / f"{number}.yaml"
        path.write_text(actor.to_yaml(), encoding="utf-8")
        read = {each.name: each for each in ActorLoader.load_all(path)}
        assert [*read] == [each.name for each in context.actors], path.read_text()
        assert read[actor.name] == actor, path.read_text()


@then("the actor error is at line {line:d}")
def _(context: Context, line: int) -> None:
    error = context.actor_error
    assert error is not None, "no fault was found"
    assert error.line == line, (error.line, str(error))
    assert str(error).startswith(f"{_path(context)}:{line}: "), error
    assert error.source == str(_path(context))


@then('the actor error says "{text}"')
def _(context: Context, text: str) -> None:
    error = context.actor_error
    assert error is not None, "no fault was found"
    assert text in str(error), error
    assert "pydantic" not in str(error) and "\n" not in str(error), error


@then('the actor error reads "{text}"')
def _(context: Context, text: str) -> None:
    assert str(context.actor_error) == text, context.actor_error


@then("the actor error is shorter than {length:d} characters after its file")
def _(context: Context, length: int) -> None:
    message = str(context.actor_error).removeprefix(str(_path(context)))
    assert 0 < len(message) < length, message


@then("the actor file has the faults")
def _(context: Context) -> None:
    found = [(error.line, str(error)) for error in context.actor_faults]
    assert len(found) == len(context.table.rows), found
    for row, (line, message) in zip(context.table, found, strict=True):
        assert str(line or "") == row["line"] and row["says"] in message, (row, line, message)


@rule("actors made in code are checked")
def _(fields: dict[str, Any]) -> dict[str, Any]:
    made = ActorConfiguration.model_validate(fields)
    assert made.to_dict() == fields
    assert ActorConfiguration.model_validate(made) == made
    return {}


# --- writing --------------------------------------------------------------------------------------


@then("the actor's YAML is the file, word for word")
def _(context: Context) -> None:
    written, file = _loaded(context).to_yaml(), _path(context).read_text(encoding="utf-8")
    assert written == file, written


@then("the actor reads back equal from its own YAML, mapping and pickled copy")
def _(context: Context) -> None:
    actor = _loaded(context)
    again = ActorLoader.loads(actor.to_yaml())
    assert again == actor, (actor.to_yaml(), again, actor)
    assert again.to_yaml() == actor.to_yaml()
    assert ActorLoader.from_mapping(actor.to_dict()) == actor
    copy = pickle.loads(pickle.dumps(actor))
    assert copy == actor and copy.to_dict() == actor.to_dict()


@then("the actor's mapping is {mapping:Json}")
def _(context: Context, mapping: str) -> None:
    actual = _loaded(context).to_dict()
    assert actual == json.loads(mapping), actual


@then("the actor made with an option that is an object cannot be written as YAML or digested")
def _(context: Context) -> None:
    actor = ActorConfiguration(model="m", options={"metadata": object()})
    for write in (actor.to_yaml, actor.digest_fields):
        try:
            write()
        except ActorConfigurationError as error:
            assert "local/actor" in str(error) and "cannot be written as" in str(error), error
        else:
            raise AssertionError(write)


@rule("a change of the actor changes its digest")
def _(context: Context, change: dict[str, Any]) -> dict[str, str]:
    actor = _loaded(context)
    changed = ActorLoader.from_mapping({**actor.to_dict(), **change}).digest_fields()
    same = bool(change) and changed == actor.digest_fields()
    return {"digest": "the same" if same else changed.decode()}


@then("the actor's output_config is {expected:Json}")
def _(context: Context, expected: str) -> None:
    actual = _loaded(context).parameters["output_config"]
    assert actual == json.loads(expected), actual


# --- requests -------------------------------------------------------------------------------------


@then("the actor's params for {request:Json} are")
def _(context: Context, request: str) -> None:
    actual = build_params(context.actor, json.loads(request))
    assert actual == json.loads(context.text), actual


@then(
    'the actor\'s params for {request:Json} with the defaults {defaults:Json} have the key "{key}"'
)
def _(context: Context, request: str, defaults: str, key: str) -> None:
    encoder = RequestEncoder(context.actor, json.loads(defaults))
    built = encoder.build(json.loads(request))
    assert built[key] == json.loads(defaults)[key], built


def _encode(context: Context, request: str, defaults: str = "null") -> None:
    context.actor_encoded = context.actor_refusal = None
    try:
        asked = ActorRequest.of(json.loads(request))
        context.actor_encoded = encode(context.actor, asked, json.loads(defaults))
    except InvalidRequestError as error:
        context.actor_refusal = error


@when("the actor's request {request:Json} is encoded")
def _(context: Context, request: str) -> None:
    _encode(context, request)


@when("the actor's request {request:Json} is encoded with the defaults {defaults:Json}")
def _(context: Context, request: str, defaults: str) -> None:
    _encode(context, request, defaults)


@then("the actor's encoded params are")
def _(context: Context) -> None:
    assert context.actor_refusal is None, context.actor_refusal
    actual = json.loads(context.actor_encoded.params)
    assert actual == json.loads(context.text), actual


@then("the actor's lane has the headers {headers:Json}")
def _(context: Context, headers: str) -> None:
    found = context.actor_encoded.headers.as_headers()
    assert found == (json.loads(headers) if isinstance(headers, str) else headers), found


@then("the actor's requests {first:Json} and {second:Json} have equal bytes")
def _(context: Context, first: str, second: str) -> None:
    encoder = RequestEncoder(context.actor)
    one, other = encoder.encode(json.loads(first)), encoder.encode(json.loads(second))
    assert one == other and one.params, (one, other)


def _odd_prompts() -> list[str]:
    rng = random.Random(7)
    alphabet = [
        *map(chr, range(0x21)), '"', "\\", "/", "}]}", "\x7f", "\u2028", "é", "漢", "😀", "\ud800"
    ]  # fmt: skip
    drawn = ("".join(rng.choices(alphabet, k=rng.randint(1, 9))) for _ in range(500))
    return ["x", "\x00", "0" * 32, '"}]}', "\udfff", "a" * 100_000, *drawn]


@then(
    "each odd prompt of the actor has the bytes that its params have, with the defaults {more:Json}"
)
def _(context: Context, more: str) -> None:
    encoder = RequestEncoder(context.actor, json.loads(more))
    outcomes: list[set[str]] = [set(), set()]
    for prompt in filter(str.strip, _odd_prompts()):
        results: list[object] = []
        # A text by itself goes the general way, a request with a prompt the prepared one.
        for asked in (prompt, ActorRequest(prompt)):
            try:
                results.append(encoder.encode(asked))
            except InvalidRequestError as error:
                results.append(str(error))
        assert results[0] == results[1], (prompt, results)
        outcomes[isinstance(results[0], str)].add(prompt)
    assert all(outcomes), "some are encoded, and some cannot be"


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@when("{count:d} requests of the actor are encoded with the defaults {defaults:Json}")
def _(context: Context, count: int, defaults: str) -> None:
    log = _Log()
    logger = logging.getLogger("claude_batch")
    logger.addHandler(log)
    try:
        encoder = RequestEncoder(context.actor, json.loads(defaults))
        context.actor_many = [encoder.encode(f"prompt {number}") for number in range(count)]
    finally:
        logger.removeHandler(log)
    context.actor_log = log.lines


@then('none of the actor\'s encoded params has "{first}" or "{second}"')
def _(context: Context, first: str, second: str) -> None:
    for encoded in context.actor_many:
        params = json.loads(encoded.params)
        assert params["messages"] and not {first, second} & set(params), params


@then("the actor's log has {count:d} warnings, which name {model} and the parameter")
def _(context: Context, count: int, model: str) -> None:
    assert len(context.actor_log) == count, context.actor_log
    for name, line in zip(("temperature", "top_k"), context.actor_log, strict=True):
        assert model in line and f"`{name}`" in line, line


@then('the actor\'s request is refused with "{text}"')
def _(context: Context, text: str) -> None:
    assert context.actor_refusal is not None, context.actor_encoded
    assert str(context.actor_refusal).startswith(text), context.actor_refusal


@then('the actor\'s request {request:Json} is refused with "{text}"')
def _(context: Context, request: str, text: str) -> None:
    value = json.loads(request)
    refusals: list[str] = []
    for ask in (RequestEncoder(context.actor).encode, lambda v: encode(context.actor, v)):
        try:
            ask(value)
        except InvalidRequestError as error:
            refusals.append(str(error))
    assert len(refusals) == 2 and all(text in refusal for refusal in refusals), refusals


@then('the actor\'s request with the key "{key}" and a lone surrogate is refused with "{text}"')
def _(context: Context, key: str, text: str) -> None:
    try:
        encode(context.actor, ActorRequest("a \ud800 b", key=key))
    except InvalidRequestError as error:
        assert str(error).startswith(text), error
        assert error.key == key
    else:
        raise AssertionError("it was encoded")


@then('a lone surrogate in the key is refused as "{text}", {how}')
def _(context: Context, text: str, how: str) -> None:
    key = "a\udc00b"
    actor = ActorConfiguration(
        name="a/b", provider="anthropic", model="claude-haiku-4-5", batch_processing=True
    )
    ways: dict[str, Callable[[], object]] = {
        "in a request": lambda: ActorRequest("x", key=key),
        "in a request with messages": lambda: ActorRequest(
            messages=[{"role": "user", "content": "x"}], key=key
        ),
        "in a mapping": lambda: ActorRequest.of({"id": key, "prompt": "x"}),
        "beside a prompt": lambda: ActorRequest.of("x", key=key),
        "of a single call": lambda: cb.ClaudeBatchProvider().respond_sync(actor, "x", key=key),
        "of a single call made live": lambda: cb.ClaudeProvider(api_key="sk-any").respond_sync(
            actor, "x", key=key
        ),
        "of a run": lambda: cb.ClaudeBatchProvider(api_key="sk-any").store(
            actor, [{"id": key, "prompt": "x"}]
        ),
    }
    try:
        ways[how]()
    except InvalidRequestError as error:
        assert text in str(error), error
        assert error.key == key
        str(error).encode()
    else:
        raise AssertionError("it was taken")


@rule("the key of a request is found")
def _(request: Any, key_of_the_caller: str | None) -> str | None:
    return ActorRequest.of(request, key=key_of_the_caller).key


@then("an actor request coerced twice is the same object")
def _(context: Context) -> None:
    request = ActorRequest("a", key="k")
    assert ActorRequest.of(request) is request
    assert ActorRequest.of(request, key="k") is request


@then("encoding 100 requests of the actor makes one encoder")
def _(context: Context) -> None:
    made = _count_encoders(context)
    for number in range(100):
        encode(context.actor, f"prompt {number}")
    assert made == [context.actor], len(made)


def _count_encoders(context: Context) -> list[Any]:
    """Watch which actors encoders are made for, until the scenario ends."""
    made: list[Any] = []
    original = RequestEncoder.__init__

    def counted(self: RequestEncoder, configuration: Any, *args: Any, **kwargs: Any) -> None:
        made.append(configuration)
        original(self, configuration, *args, **kwargs)

    RequestEncoder.__init__ = counted  # type: ignore[method-assign]
    context.add_cleanup(lambda: setattr(RequestEncoder, "__init__", original))
    return made


@then("200 actors asked in turn keep no more than 64 encoders")
def _(context: Context) -> None:
    encoders = RequestEncoders()
    for number in range(200):
        actor = ActorConfiguration(model=f"m-{number}")
        encoded = encoders.of(actor).encode("hello")
        assert json.loads(encoded.params)["model"] == f"m-{number}"
    assert len(encoders._made) <= RequestEncoders.KEPT == 64
    assert isinstance(request_module._encoders, RequestEncoders)


@then('asking the actor is refused with "{text}"')
def _(context: Context, text: str) -> None:
    try:
        encode(context.actor, "hello")
    except ActorConfigurationError as error:
        assert text in str(error), error
    else:
        raise AssertionError("it was asked")


@rule("many requests are taken")
def _(requests: Any) -> dict[str, Any]:
    check_requests(requests)
    return {}


# --- responses ------------------------------------------------------------------------------------


@given('an actor response of batch "{batch}", attempt {attempt:d}')
def _(context: Context, batch: str, attempt: int) -> None:
    context.actor_raw = context.text.encode()
    context.actor_response = ActorResponse(context.actor_raw, batch_id=batch, attempt=attempt)


@then("the actor response shows")
def _(context: Context) -> None:
    for row in context.table:
        actual = _field(context.actor_response, row["field"])
        assert actual == json.loads(row["value"]), (row["field"], actual)


@then("the actor response's raw bytes are those that came")
def _(context: Context) -> None:
    assert context.actor_response.raw == context.actor_raw


@then("the actor response's message is the SDK's, with 4 blocks and a tool call")
def _(context: Context) -> None:
    from anthropic.types import Message, TextBlock, ToolUseBlock

    message = context.actor_response.message
    assert isinstance(message, Message) and len(message.content) == 4
    assert isinstance(message.content[1], TextBlock) and message.content[1].text == "Hel"
    assert isinstance(message.content[2], ToolUseBlock) and message.content[2].input == {"a": 1}
    assert message.usage.cache_read_input_tokens == 20


@then('the actor response\'s plain values have the keys "{keys}"')
def _(context: Context, keys: str) -> None:
    assert list(context.actor_response.to_dict()) == keys.split(", ")


@then("the actor response's plain values survive JSON")
def _(context: Context) -> None:
    values = context.actor_response.to_dict()
    assert json.loads(msgspec.json.encode(values)) == values
    assert values["usage"]["cache_creation_1h_input_tokens"] == 6 and values["text"] == "Hello"


@then("the actor response equals its pickled copy, also after it was read")
def _(context: Context) -> None:
    response = context.actor_response
    for _ in range(2):
        copy = pickle.loads(pickle.dumps(response))
        assert copy == response and hash(copy) == hash(response)
        assert copy.usage == response.usage and copy.attempt == 2


@then("the actor response differs from one of another batch, attempt or text, and from a string")
def _(context: Context) -> None:
    response, raw = context.actor_response, context.actor_raw
    others: list[object] = [
        ActorResponse(raw, batch_id="msgbatch_2", attempt=2),
        ActorResponse(raw, batch_id="msgbatch_1", attempt=1),
        ActorResponse(raw.replace(b"Hel", b"Yel"), batch_id="msgbatch_1", attempt=2),
        "Hello",
    ]
    assert all(response != other for other in others)
    assert response == ActorResponse(raw, batch_id="msgbatch_1", attempt=2)


@then("the actor response can be told in a log by its repr")
def _(context: Context) -> None:
    text = repr(context.actor_response)
    assert "msg_1" in text and "msgbatch_1" in text and len(text) < 200, text


@then(
    'reading the actor response\'s text raises a missing result of batch "{batch}", and raw is kept'
)
def _(context: Context, batch: str) -> None:
    response = context.actor_response
    for read in (lambda: response.text, lambda: response.message, response.to_dict):
        try:
            read()
        except MissingResultError as error:
            assert error.batch_id == batch and "cannot be read as a Message" in str(error), error
        else:
            raise AssertionError("it was read")
    assert response.raw == context.actor_raw


@then("an actor result with a response is ok and unwraps to it")
def _(context: Context) -> None:
    result = ActorResult(key="k", position=0, response=context.actor_response)
    assert result.ok and result.unwrap() is context.actor_response
    assert pickle.loads(pickle.dumps(result)) == result


@then("an actor result with an error is not ok and unwraps by raising it")
def _(context: Context) -> None:
    fault = LiveRequestError("no")
    result = ActorResult(key=None, position=1, error=fault)
    assert not result.ok
    try:
        result.unwrap()
    except LiveRequestError as error:
        assert error is fault
    else:
        raise AssertionError("it was unwrapped")


@then("an actor result with both or neither cannot be made")
def _(context: Context) -> None:
    for fields in ({}, {"response": context.actor_response, "error": LiveRequestError("no")}):
        try:
            ActorResult(key=None, position=0, **fields)
        except ValueError as error:
            assert "either a response or an error" in str(error)
        else:
            raise AssertionError(fields)
