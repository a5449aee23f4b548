"""`ActorLoader`: load actors from YAML; each error names file, line and remedy."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from claude_batch.actor.configuration import (
    KEYS_CHECKED,
    ActorConfiguration,
    close_word,
    key_faults,
    misplaced_budgets,
    unused_keys,
)
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.errors import ActorConfigurationError
from claude_batch.core.files import read_small
from claude_batch.core.yaml_text import BoundedLoader, YamlFault, pairs, yaml_faults

_log = logging.getLogger(__name__)

_Path = tuple[str | int, ...]

_BATCH_KEYS = tuple(BatchProcessingMode.model_fields)
_MISPLACED = ("batch_processing", "system_prompt", "options", "response_format", "documents")
# Beside `actors`, these keys would be carried as the host's, and silently have no effect.


class ActorLoader:
    """Reads actors from YAML files, flat (one actor) or nested (``actors: {<id>: …}``).

    Every method raises only `ActorConfigurationError`, for any error in the file.
    """

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, name: str | None = None) -> ActorConfiguration:
        """Return the actor of a file; in a nested one ``name``, its default or only actor.

        Logs a warning for each key that has no effect where it stands, but has one elsewhere.
        """
        text, source = _read(path)
        actor = cls.loads(text, source, name=name).in_folder(os.path.dirname(source))
        for note in unused_notes(source, actor, placed=True):
            _log.warning("%s", note, extra={"for_people": True})
        return actor

    @classmethod
    def loads(
        cls, text: str, source: str = "<string>", *, name: str | None = None
    ) -> ActorConfiguration:
        """Return the actor of a YAML text; ``source`` is the text's name in messages."""
        return _Document.parse(text, source).chosen(name)

    @classmethod
    def load_all(cls, path: str | os.PathLike[str]) -> list[ActorConfiguration]:
        """Return all actors of a file in order; those of other types than ``llm`` unchecked."""
        text, source = _read(path)
        document = _Document.parse(text, source)
        faults = list(document.faults())
        found = [] if faults else [document.actor(entry, faults) for entry in document.entries()]
        if faults:
            raise _one_of(faults, source)
        folder = os.path.dirname(source)
        return [actor.in_folder(folder) for actor in found if actor is not None]

    @classmethod
    def is_actor(cls, path: str | os.PathLike[str]) -> bool:
        """Return whether a YAML file has an actor with ``model`` and ``provider``, valid or not."""
        try:
            text, source = _read(path)
            if "model" not in text or "provider" not in text:
                return False
            entries = _Document.parse(text, source).entries()
        except ActorConfigurationError:
            return False
        return any(_has_model_and_provider(entry.data) for entry in entries)

    @classmethod
    def from_mapping(
        cls, data: Mapping[str, Any], source: str | None = None, *, name: str | None = None
    ) -> ActorConfiguration:
        """Return the actor of a mapping that was read elsewhere, for example by a host."""
        return _Document(source, dict(data)).chosen(name)

    @classmethod
    def check(cls, path: str | os.PathLike[str]) -> list[ActorConfigurationError]:
        """Return all errors of a file in the order of its lines; empty if it is valid.

        An actor of another type than ``llm`` is not an error of the file, unless it is the only
        actor or the default one.
        """
        try:
            text, source = _read(path)
            document = _Document.parse(text, source)
        except ActorConfigurationError as error:
            return [error]
        faults = list(document.faults())
        for entry in document.entries():
            document.actor(entry, faults)
        if not faults:
            try:
                if len(document.entries()) == 1 or document.default_actor() is not None:
                    cls.loads(text, source)
            except ActorConfigurationError as error:
                faults.append(error)
        return _in_order(faults)


def unused_notes(source: str, actor: ActorConfiguration, *, placed: bool = False) -> Iterator[str]:
    """Yield a note for each key of an actor's file that has no effect here.

    With ``placed``, only for those that have an effect at another place.
    """
    if actor.type != "llm":
        return
    for key, place in unused_keys(actor):
        if place is not None or not placed:
            remedy = "" if place is None else f". It belongs under `{place}`"
            yield (
                f"{source}: actor {actor.name}: `{key}` is kept for a host framework, and has no "
                f"effect here{remedy}"
            )


class _Entry(msgspec.Struct, frozen=True):
    """One actor in a document: its id in a nested one, its position, and its keys."""

    identifier: str | None
    path: _Path
    data: Mapping[str, Any]


class _Document:
    """A parsed file: its values, and its nodes, which hold the line numbers."""

    def __init__(
        self,
        source: str | None,
        data: dict[str, Any],
        root: yaml.MappingNode | None = None,
        doubled: Sequence[ActorConfigurationError] = (),
    ) -> None:
        self.source = source
        self.data = data
        self.root = root
        self.doubled = doubled

    @classmethod
    def parse(cls, text: str, source: str) -> _Document:
        try:
            with yaml_faults(text):
                loader = _Loader(text)
                root = loader.get_single_node()
                if root is None:
                    raise ActorConfigurationError(
                        "the file is empty; an actor needs at least `model: …`", source=source
                    )
                if not isinstance(root, yaml.MappingNode):
                    raise ActorConfigurationError(
                        "an actor must be a mapping of keys to values, not a list or a single "
                        "value",
                        source=source,
                        line=root.start_mark.line + 1,
                    )
                # Before values are made: merging (``<<``) puts what it overrides into the nodes.
                doubled = list(_doubled_keys(root, source, set()))
                data: object = loader.construct_document(root)  # pyright: ignore[reportUnknownMemberType]
        except YamlFault as fault:
            raise ActorConfigurationError(
                f"invalid YAML: {fault.words}", source=source, line=fault.line
            ) from None
        return cls(source, cast("dict[str, Any]", data), root, doubled)

    # --- places ---------------------------------------------------------------------------------

    def line(self, path: _Path) -> int | None:
        """Return the line of the key at ``path``, or of its nearest ancestor; from 1."""
        if self.root is None:
            return None
        line = self.root.start_mark.line
        for key, _ in self._along(path):
            line = key.start_mark.line
        return line + 1

    def _along(self, path: _Path) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yield key and value of each step of ``path``, as far as the file has it."""
        node: yaml.Node | None = self.root
        for step in path:
            inside = pairs(node) if isinstance(node, yaml.MappingNode) else []
            found = next((pair for pair in reversed(inside) if _is_key(pair[0], step)), None)
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                items = cast("list[yaml.Node]", node.value)[step : step + 1]
                found = (items[0], items[0]) if items else None
            if found is None:
                return
            yield found
            node = found[1]

    def error(self, message: str, path: _Path) -> ActorConfigurationError:
        return ActorConfigurationError(message, source=self.source, line=self.line(path))

    # --- faults of the file as a whole ----------------------------------------------------------

    def faults(self) -> Iterator[ActorConfigurationError]:
        yield from self.doubled
        for key in self.data:
            if not isinstance(cast("object", key), str):
                yield self.error(_not_text(key), (str(key),))
                return
        if not self.nested:
            return
        actors: object = self.data.get("actors")
        if not isinstance(actors, Mapping) or not actors:
            words = "`actors` must be a mapping of ids to actors, with at least one"
            yield self.error(words, ("actors",))
            return
        header: object = self.data.get("cleveragents")
        if header is not None and not isinstance(header, Mapping):
            yield self.error(
                "`cleveragents` must be a mapping of `version` and `default_actor`",
                ("cleveragents",),
            )
        for identifier, entry in cast("Mapping[object, object]", actors).items():
            if not isinstance(entry, Mapping):
                yield self.error(
                    f"actor {identifier} is a mapping of `type`, `config`, …, not {_show(entry)}",
                    ("actors", str(identifier)),
                )
        for key in self.data:
            if key in _MISPLACED:
                yield self.error(
                    f"`{key}` has no effect beside `actors`; move it into `actors.<id>.config`",
                    (key,),
                )
        for path, text in misplaced_budgets(self.data, "actors.<id>.config.batch_processing"):
            yield self.error(text, path)
        for path, text in key_faults({k: v for k, v in self.data.items() if "batch" in str(k)}):
            yield self.error(f"{text} Move it into `actors.<id>.config`", path)

    # --- actors ---------------------------------------------------------------------------------

    @property
    def nested(self) -> bool:
        return "actors" in self.data or "cleveragents" in self.data

    def entries(self) -> list[_Entry]:
        if not self.nested:
            return [_Entry(None, (), self.data)]
        actors: object = self.data.get("actors")
        if not isinstance(actors, Mapping):
            return []
        return [
            _Entry(str(identifier), ("actors", str(identifier)), cast("Mapping[str, Any]", entry))
            for identifier, entry in cast("Mapping[object, object]", actors).items()
            if isinstance(entry, Mapping)
        ]

    def default_actor(self) -> str | None:
        header: object = self.data.get("cleveragents")
        if isinstance(header, Mapping):
            default = cast("Mapping[str, Any]", header).get("default_actor")
            return None if default is None else str(default)
        return None

    def choose(self, name: str | None) -> _Entry:
        """Return the requested entry. Raises if there is not exactly one."""
        entries = self.entries()
        wanted = name if name is not None else self.default_actor()
        if wanted is None:
            if len(entries) == 1:
                return entries[0]
            raise self.error(
                f"the file has several actors ({_ids(entries)}); name one, or set "
                "`cleveragents.default_actor`",
                ("actors",),
            )
        for entry in entries:
            if wanted in _names(entry):
                return entry
        who = "the default actor" if name is None else "an actor"
        path: _Path = ("cleveragents", "default_actor") if name is None else ("actors",)
        raise self.error(
            f"{who} called {wanted!r} is not in the file, which has {_ids(entries)}", path
        )

    def chosen(self, name: str | None) -> ActorConfiguration:
        """Return the requested actor. Raises the first error of the file, or of the actor."""
        faults = list(self.faults())
        if faults:
            raise _one_of(faults, self.source)
        entry = self.choose(name)
        actor = self.actor(entry, faults)
        if actor is None:
            raise _one_of(faults, self.source)
        try:
            actor.require_answerable()
        except ActorConfigurationError as error:
            raise self.error(str(error), (*entry.path, "type")) from None
        return actor

    def actor(
        self, entry: _Entry, faults: list[ActorConfigurationError]
    ) -> ActorConfiguration | None:
        """Return the configuration of an entry, or None; then its errors are added to a list."""
        data = dict(entry.data)
        if entry.identifier is not None and data.get("name") is None:
            data["name"] = entry.identifier
        found = [self.error(text, (*entry.path, *path)) for path, text in key_faults(data)]
        configuration: ActorConfiguration | None = None
        try:
            configuration = _validate(data)
        except ValidationError as error:
            for path, text in _translate(error):
                place = (*entry.path, *path)
                if path and path[0] not in (*entry.data, *map(str, entry.data)):
                    place = (*entry.path, "config", *path)
                found.append(self.error(text, place))
        if configuration is None or configuration.type == "llm":
            found += [self.error(*fault) for fault in self._misread(entry)]
        if found or configuration is None:
            faults += found
            return None
        if entry.identifier is None:
            return configuration
        return configuration.in_envelope(entry.identifier, self.data)

    def _misread(self, entry: _Entry) -> Iterator[tuple[str, _Path]]:
        """Yield the faults of values that are sent as they are in the file."""
        for holder in (entry.path, (*entry.path, "config")):
            for name in ("options", "response_format"):
                path = (*holder, name)
                found = list(self._along(path))
                if len(found) == len(path):
                    yield from _misread(found[-1][1], path)


def _misread(node: yaml.Node, path: _Path) -> Iterator[tuple[str, _Path]]:
    """Yield message and path of each key that JSON would change, and of words read as booleans."""
    if isinstance(node, yaml.SequenceNode):
        for number, inner in enumerate(cast("list[yaml.Node]", node.value)):
            yield from _misread(inner, (*path, number))
    if not isinstance(node, yaml.MappingNode):
        return
    # A later key overrides an equal one, which may be merged.
    loader = _Loader("")
    inside = {loader.construct_object(key): (key.value, inner) for key, inner in pairs(node)}
    for key, (text, inner) in inside.items():
        if isinstance(key, bool) or str(key) != text:
            yield _not_text(key), (*path, key)
        yield from _misread(inner, (*path, key))
        if key in ("enum", "const") and "type" not in inside:
            values = inner.value if isinstance(inner, yaml.SequenceNode) else [inner]
            if any(
                each.tag == "tag:yaml.org,2002:bool" and each.value.lower() not in ("true", "false")
                for each in cast("list[yaml.Node]", values)
            ):
                why = "has true or false, but no `type`; put words such as yes and no in quotes"
                yield f"`{key}` {why}, or add the type", (*path, key)


def _has_model_and_provider(data: Mapping[str, Any]) -> bool:
    config: object = data.get("config")
    keys = set(data)
    if isinstance(config, Mapping):
        keys |= set(cast("Mapping[str, Any]", config))
    return {"model", "provider"} <= keys


def _validate(data: dict[str, Any]) -> ActorConfiguration:
    kind = data.get("type")
    if isinstance(kind, str) and kind.strip().lower() != "llm":
        # Only the host can validate the keys of another kind of actor.
        head = {key: data[key] for key in ("name", "type") if key in data}
        judged = ActorConfiguration.model_validate(head)
        return ActorConfiguration.model_construct(
            set(data), **{**data, "type": judged.type, "name": judged.name}
        )
    return ActorConfiguration.model_validate(data, context=KEYS_CHECKED)


# --- pydantic's words into ours -------------------------------------------------------------------


def _translate(error: ValidationError) -> Iterator[tuple[_Path, str]]:
    """Yield path and message of each error that pydantic found."""
    alternatives: dict[_Path, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        path = detail["loc"]
        if path[:1] == ("batch_processing",):
            # Without the tag of the union's side, and that of a setting that is a union itself.
            path = ("batch_processing", *path[2:3])
        if path[-1:] == ("[key]",):
            path = path[:-1]
        alternatives.setdefault(path, []).append(detail)
    for path, (detail, *others) in alternatives.items():
        if detail["type"] == "bool_parsing" and others:
            words = " or ".join(_expected(each) for each in (detail, *others))
            yield path, f"`{_key(path)}` must be {words}, not {_show(detail['input'])}"
        else:
            for each in (detail, *others):
                yield path, _sentence(path, each)


def _sentence(path: _Path, detail: ErrorDetails) -> str:
    key = _key(path)
    kind, given = detail["type"], _show(detail["input"])
    if kind == "invalid_key" or detail["loc"][-1:] == ("[key]",):
        return _not_text(detail["input"])
    if kind == "extra_forbidden":
        return (
            f"unknown key `{path[-1]}` in `batch_processing`{_meant(str(path[-1]))}; the known "
            f"keys are {', '.join(_BATCH_KEYS)}"
        )
    if kind == "no_mode":
        return (
            f"`batch_processing` must be true, false, or a mapping of {', '.join(_BATCH_KEYS)}; "
            f"not {given}"
        )
    if kind == "value_error":
        words = detail["msg"].removeprefix("Value error, ")
        return f"`{key}`: {words}" if key else words
    if kind in ("model_missing", "format_twice", "system_twice"):
        return detail["msg"]
    return f"`{key}` must be {_expected(detail)}, not {given}"


def _not_text(key: object) -> str:
    why = " (YAML reads words such as on and yes so)" if isinstance(key, bool) else ""
    return f"the key {key!r} is not a text{why}; put it in quotes"


def _key(path: _Path) -> str:
    return ".".join(str(step) for step in path)


def _expected(detail: ErrorDetails) -> str:
    """Return what a value must be: ``a whole number``."""
    wanted = {
        "string_type": "a text",
        "dict_type": "a mapping",
        "list_type": "a list",
        "bool_type": "true or false",
        "bool_parsing": "true or false",
        "int_parsing": "a whole number",
        "int_type": "a whole number",
        "int_from_float": "a whole number",
    }.get(detail["type"])
    words = detail["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return wanted or words


def _meant(key: str) -> str:
    meant = close_word(key, _BATCH_KEYS, cutoff=0.6)
    return "" if meant is None else f" (did you mean `{meant}`?)"


def _show(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


# --- reading --------------------------------------------------------------------------------------


class _Loader(BoundedLoader):
    """Loads YAML as JSON values: dates stay text as written."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read(path: str | os.PathLike[str]) -> tuple[str, str]:
    source = os.fspath(path)
    try:
        return read_small(source), source
    except UnicodeDecodeError as error:
        raise ActorConfigurationError(
            f"the file is not UTF-8 text (byte {error.start + 1}); save it as UTF-8", source=source
        ) from None
    except FileNotFoundError:
        raise ActorConfigurationError("there is no such file", source=source) from None
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ActorConfigurationError(f"the file cannot be read: {words}", source=source) from None


def _is_key(node: yaml.Node, step: str | int) -> bool:
    """Return whether a key's node is meant by a step of a path, which names ``on`` as 1 or True."""
    if node.value == step:
        return True
    if not isinstance(node, yaml.ScalarNode) or node.tag == "tag:yaml.org,2002:str":
        return False
    key: object = _Loader("").construct_object(node)
    return step in (key, str(key))


def _doubled_keys(
    node: yaml.Node, source: str, seen: set[int]
) -> Iterator[ActorConfigurationError]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in pairs(node):
            line = key.start_mark.line + 1
            name = f"{key.tag} {key.value}"
            if name in lines:
                yield ActorConfigurationError(
                    f"the key `{key.value}` is repeated (first in line {lines[name]}); keep one",
                    source=source,
                    line=line,
                )
            lines.setdefault(name, line)
            yield from _doubled_keys(value, source, seen)
    elif isinstance(node, yaml.SequenceNode):
        for item in cast("list[yaml.Node]", node.value):
            yield from _doubled_keys(item, source, seen)


def _names(entry: _Entry) -> set[str]:
    names = {entry.identifier or ""}
    own = entry.data.get("name")
    if isinstance(own, str):
        names.add(own)
    return names | {f"local/{name}" for name in names if "/" not in name}


def _ids(entries: list[_Entry]) -> str:
    return ", ".join(entry.identifier or str(entry.data.get("name")) for entry in entries)


def _in_order(faults: list[ActorConfigurationError]) -> list[ActorConfigurationError]:
    """Return the errors by line, each once: several checks may find the same one."""
    distinct = {str(fault): fault for fault in faults}
    return sorted(distinct.values(), key=lambda fault: fault.line or 0)


def _one_of(faults: list[ActorConfigurationError], source: str | None) -> ActorConfigurationError:
    """Return the first error by line; if there are more, it explains how to list them."""
    first, *others = _in_order(faults)
    if not others:
        return first
    more = f"(and {len(others)} more; `claude-batch actors validate {source or 'FILE'}` lists all)"
    error = ActorConfigurationError(f"{first} {more}")
    error.source, error.line = first.source, first.line
    return error
