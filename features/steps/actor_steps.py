"""Steps for the actor room: YAML in, params out, answers back."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import parse
import yaml
from behave import given, register_type, then, use_step_matcher, when
from behave.runner import Context
from staging import Markup
from tables import rule

import claude_batch as cb
from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.loader import ActorLoader
from claude_batch.actor.request import (
    ActorRequest,
    RequestEncoder,
    RequestEncoders,
    check_requests,
)
from claude_batch.actor.response import ActorResponse, ActorResult
from claude_batch.core.errors import (
    ActorConfigurationError,
    InvalidRequestError,
    LiveRequestError,
    MalformedAnswerError,
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
    if "actor_file" not in context:
        context.actor_file = _folder(context) / "actor.yaml"
    return context.actor_file


# --- files ----------------------------------------------------------------------------------------


@given("an actor file")
@given('an actor file in "{folder}"')
def _(context: Context, folder: str = ".") -> None:
    path = _folder(context) / folder / "actor.yaml"
    path.parent.mkdir(exist_ok=True)
    context.actor_file = path
    _path(context).write_text(context.text + "\n", encoding="utf-8")


@given('an actor file of the bytes "{escaped}"')
def _(context: Context, escaped: str) -> None:
    raw = escaped.encode("latin-1").decode("unicode_escape").encode("latin-1")
    _path(context).write_bytes(raw)


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
    _load(context, lambda: ActorLoader.from_mapping(yaml.safe_load(mapping)))


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
    error = context.actor_error
    at = f"{error.source}:{error.line}: " if error.line else ""
    assert str(error) == at + text, error


@then("the actor file has the faults")
def _(context: Context) -> None:
    found = [(error.line, str(error)) for error in context.actor_faults]
    assert len(found) == len(context.table.rows), found
    for row, (line, message) in zip(context.table, found, strict=True):
        assert str(line or "") == row["line"] and row["says"] in message, (row, line, message)


@rule("a system prompt in YAML is read")
def _(context: Context, yaml: str) -> str | None:
    """The YAML and the prompt are JSON texts, with escapes for what cannot be seen."""
    path = Path(context.tmp, "separators.yaml")
    path.write_text(f"model: claude-haiku-4-5\n{json.loads(yaml)}\n", "utf-8", newline="\n")
    return ascii(ActorLoader.load(path).system_prompt)


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
@then("each of the actors reads back equal from its own YAML, mapping and pickled copy")
def _(context: Context) -> None:
    actors = context.actors or [_loaded(context)]
    for actor in actors:
        again = _path(context).with_name("again.yaml")  # documents are found beside it
        again.write_text(actor.to_yaml(), encoding="utf-8")
        read = {each.name: each for each in ActorLoader.load_all(again)}
        assert [*read] == [each.name for each in actors] or not context.actors, actor.to_yaml()
        assert read[actor.name] == actor, (actor.to_yaml(), read, actor)
        assert read[actor.name].to_yaml() == actor.to_yaml()
        if not context.actors and not actor.common_documents:
            assert ActorLoader.loads(actor.to_yaml()) == actor
            assert ActorLoader.from_mapping(actor.to_dict()) == actor
        copy = pickle.loads(pickle.dumps(actor))
        assert copy == actor and copy.to_dict() == actor.to_dict()


@then("the actor's mapping is {mapping:Json}")
def _(context: Context, mapping: str) -> None:
    actual = _loaded(context).to_dict()
    assert actual == json.loads(mapping), actual


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
@then("the actor's params with the defaults {defaults:Json} for {request:Json} are")
def _(context: Context, request: str, defaults: str | None = None) -> None:
    with contextlib.chdir(context.tmp):
        encoder = RequestEncoder(context.actor, json.loads(defaults or "{}"))
        encoded = encoder.encode(json.loads(request))
    actual = json.loads(encoded.params)
    if encoded.headers.betas:
        actual["betas"] = list(encoded.headers.betas)
    assert actual == json.loads(context.text), actual


@when("the actor's request {request:Json} is encoded")
def _(context: Context, request: str) -> None:
    encoder = RequestEncoder(context.actor)
    context.actor_encoded = encoder.encode(ActorRequest.of(json.loads(request)))
    assert encoder.encode(json.loads(request)) == context.actor_encoded


@when("the actor's request {request:Json} is encoded with the defaults {defaults:Json}")
def _(context: Context, request: str, defaults: str) -> None:
    encoder = RequestEncoder(context.actor, json.loads(defaults))
    context.actor_encoded = encoder.encode(ActorRequest.of(json.loads(request)))
    assert encoder.encode(ActorRequest.of(json.loads(request))) == context.actor_encoded


@then("the actor's encoded params are")
def _(context: Context) -> None:
    actual = json.loads(context.actor_encoded.params)
    assert actual == json.loads(context.text), actual


@then("the actor's lane has the headers {headers:Json}")
def _(context: Context, headers: str) -> None:
    found = context.actor_encoded.headers.as_headers()
    assert found == (json.loads(headers) if isinstance(headers, str) else headers), found


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
        if not isinstance(results[0], str):
            own = Markup(prompt)
            messages = [{"role": "user", "content": own}]
            same = ({"id": 7, "prompt": prompt}, own, ActorRequest(own), {"messages": messages})
            assert all(encoder.encode(each) == results[0] for each in same), prompt
        outcomes[isinstance(results[0], str)].add(prompt)
    assert all(outcomes), "some are encoded, and some cannot be"


@then('the actor\'s request {request:Json} is refused with "{text}"')
def _(context: Context, request: str, text: str) -> None:
    value = json.loads(request)
    try:
        with contextlib.chdir(context.tmp):
            encoder = RequestEncoder(context.actor)
            if "NaN" in request:
                encoder.encode(json.loads(request.replace("NaN", "null")))
            encoder.encode(value)
    except InvalidRequestError as error:
        assert str(error).startswith("request '") == (error.key is not None), vars(error)
        assert text in str(error), error
    except ActorConfigurationError as error:
        assert text in str(error), error
    else:
        raise AssertionError("the request is not refused")


@rule("a lone surrogate in the key is taken")
def _(where: str) -> None:
    key = "a\udc00b"
    actor = ActorConfiguration(
        name="a/b", provider="anthropic", model="claude-haiku-4-5", batch_processing=True
    )
    ways: dict[str, Callable[[], object]] = {
        "a request": lambda: ActorRequest("x", key=key),
        "a request with messages": lambda: ActorRequest(
            messages=[{"role": "user", "content": "x"}], key=key
        ),
        "a mapping": lambda: ActorRequest.of({"id": key, "prompt": "x"}),
        "beside a prompt": lambda: ActorRequest.of("x", key=key),
        "a call": lambda: cb.ClaudeBatchProvider().respond_sync(actor, "x", key=key),
        "a live call": lambda: cb.ClaudeProvider(api_key="sk-any").respond_sync(
            actor, "x", key=key
        ),
        "a run": lambda: cb.ClaudeBatchProvider(api_key="sk-any").store(
            actor, [{"id": key, "prompt": "x"}]
        ),
    }
    try:
        ways[where]()
    except InvalidRequestError as error:
        assert error.key == key
        str(error).encode()
        raise


@rule("the key of a request is found")
def _(request: Any, key_of_the_caller: str | None) -> str | None:
    found = ActorRequest.of(request, key=key_of_the_caller)
    assert ActorRequest.of(found) is found and ActorRequest.of(found, key=found.key) is found
    return found.key


@rule("encoders are made and kept")
def _(actors: int, requests_of_each: int) -> dict[str, int]:
    made = 0

    def counted(self: RequestEncoder, *args: Any, **kwargs: Any) -> None:
        nonlocal made
        made += 1
        original(self, *args, **kwargs)

    original = RequestEncoder.__init__
    encoders = RequestEncoders()
    with mock.patch.object(RequestEncoder, "__init__", counted):
        for number in range(actors):
            actor = ActorConfiguration(model=f"m-{number}")
            for asked in range(requests_of_each):
                encoded = encoders.of(actor).encode(f"prompt {asked}")
                assert json.loads(encoded.params)["model"] == f"m-{number}"
    return {"made": made, "kept": len(encoders._made)}


@rule("many requests are taken")
def _(requests: Any) -> dict[str, Any]:
    check_requests(requests)
    return {}


# --- responses ------------------------------------------------------------------------------------


@given('an actor response of batch "{batch}", attempt {attempt:d}')
def _(context: Context, batch: str, attempt: int) -> None:
    context.actor_raw = context.text.encode()
    context.actor_response = ActorResponse(context.actor_raw, batch_id=batch, attempt=attempt)


@then("the answer's usage has these advisors")
def _(context: Context) -> None:
    values = json.loads(json.dumps(context.actor_response.to_dict()))
    assert context.text is not None
    assert values["usage"]["advisors"] == json.loads(context.text), values


@rule("actors with an option that is an object are written")
def _(way: str) -> Any:
    return getattr(ActorConfiguration(model="m", options={"inference_geo": object()}), way)()


@rule("the response and another one, read and pickled, are compared")
def _(context: Context, batch: str, attempt: int, first_text: str) -> bool:
    response = context.actor_response
    assert response != response.text
    raw = context.actor_raw.replace(b"Hel", first_text.encode())
    other = ActorResponse(raw, batch_id=batch, attempt=attempt)
    for _ in range(2):  # the second time the usage has been read
        copy = pickle.loads(pickle.dumps(other))
        assert copy == other and hash(copy) == hash(other)
        assert copy.usage == other.usage and copy.attempt == attempt
    assert (hash(response) == hash(other)) == (response == other)
    return response == other


@rule("bytes are read as a message")
def _(raw: str, way: str) -> Any:
    response = ActorResponse(raw.encode(), batch_id="msgbatch_1")
    try:
        found = getattr(response, way)
        return found() if callable(found) else found
    except MalformedAnswerError as error:
        assert error.batch_id == "msgbatch_1" and response.raw == raw.encode()
        raise


@rule("results are made")
def _(context: Context, response: bool, error_given: bool) -> dict[str, object]:
    answer = context.actor_response if response else None
    fault = LiveRequestError("no") if error_given else None
    result = ActorResult(key="k", position=0, response=answer, error=fault)
    copy = pickle.loads(pickle.dumps(result))
    assert copy.ok == result.ok and copy.response == answer and str(copy.error) == str(fault)
    try:
        unwrapped = "its response" if result.unwrap() is answer else "something else"
    except LiveRequestError as raised:
        unwrapped = "raises its error" if raised is fault else "raises something else"
    assert result.text in (None, answer and answer.text)
    return {"ok": result.ok, "has_text": result.text is not None, "unwrapped": unwrapped}
