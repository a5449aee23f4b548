"""`OutputFormat`: the type of the answers, as a JSON schema and a parser, or as labelled fields.

Any type that Pydantic can validate works: a model, a dataclass, ``list[Invoice]``.
`anthropic.transform_schema` describes in words what the API's schemas do not support (bounds,
patterns of a model's own). The parser checks it when the answer is read.

The API rejects a schema together with citations, so an answer with both is written as labelled
fields: each value is a line of ``[[label]] value``. Its label is its path in the object, such as
``seller.name`` or ``items[0].price``. The text after a label belongs to its field, and so do the
citations of the blocks that contain the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from types import UnionType
from typing import Any, ForwardRef, Generic, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from claude_batch.core.answer_parts import Citation
from claude_batch.core.errors import InvalidRequestError
from claude_batch.core.user_functions import described, ends_the_caller
from claude_batch.wire.messages import citations_of_block
from claude_batch.wire.schemas import schema_fault

# Labelled fields ----------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(
    rf"(^[^\S\n]*)?\[\[({_NAME.pattern}(?:\.{_NAME.pattern}|\[[0-9]{{0,9}}\])*)\]\]", re.MULTILINE
)
_STEP = re.compile(rf"({_NAME.pattern})|\[([0-9]*)\]")
_SCALARS = frozenset(("string", "integer", "number", "boolean", "null", "literal"))

_MOST_PARTS = 10_000
"""Maximum parts of a schema: its references may repeat a few of them any number of times."""

_ASK = """\
Answer with the fields below and with nothing else. Write each on a line of its own: its label, in \
double square brackets, and then its value as plain text. The JSON schema behind a label says what \
the value may be. Of a field that is a list, write one line with the label for each item. Where \
the documents do not say a value, write null. Cite the documents for every value, also though it \
stands behind a label.
"""

_ASK_ITEMS = """\
A label with [] describes the objects of a list. Write the number of the object there, counted \
from 0, and write all lines of one object before those of the next: {first} and its other lines, \
then {second}, and so on. Of a list without objects, write no line.
"""


class LabelledField(NamedTuple):
    """The part of an answer after one label."""

    label: str
    value: str
    citations: tuple[Citation, ...]


class _Value(msgspec.Struct, frozen=True):
    """A scalar, or a list of scalars, which has a line for each item."""

    kinds: set[str]
    """Names of scalar types, ``literal`` for those of ``literals``, and ``list``."""
    literals: dict[str, Any]
    """The values of an enum or a const, by their texts."""
    schema: dict[str, Any]


class _Object(msgspec.Struct, frozen=True):
    """An object, or one of several: then it has the fields of all."""

    fields: dict[str, _Node]
    shared: set[str]
    """Fields that all alternatives have."""
    required: set[str]
    nullable: bool
    description: str


class _List(msgspec.Struct, frozen=True):
    """A list of objects or lists."""

    items: _Object | _List | _Value
    description: str


_Node: TypeAlias = _Value | _Object | _List
_Path: TypeAlias = tuple[str | int, ...]


class Labels:
    """The labels of a JSON schema: what to ask for, and how to read the answer."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Raises `InvalidRequestError`, which names the field that cannot have a label."""
        try:
            root = _SchemaReader(schema).node([schema], "")
        except RecursionError:
            raise _refusal("", "This format is nested too deeply; flatten it") from None
        if not isinstance(root, _Object):
            raise _refusal("", "This format has no fields; use a model with fields")
        self._root = root
        self._values: dict[str, _Value] = {
            label: node for label, node in _labelled(root) if isinstance(node, _Value)
        }

    def instruction(self) -> str:
        """Return the instruction for the model to answer in these fields."""
        lines = [_ASK]
        if numbered := [label for label in self._values if "[]" in label]:
            first, second = (
                f"[[{numbered[0].replace('[]', '[0]').replace('[0]', f'[{number}]', 1)}]]"
                for number in (0, 1)
            )
            lines.append(_ASK_ITEMS.format(first=first, second=second))
        for label, node in _labelled(self._root):
            if isinstance(node, _Value):
                lines.append(f"[[{label}]] {msgspec.json.encode(node.schema).decode()}")
            elif node.description:
                lines.append(f"{label}: {node.description}")
        return "\n".join(lines)

    def fields(self, content: Sequence[Mapping[str, Any]]) -> list[LabelledField]:
        """Return the labelled fields of an answer, in order; empty if it has none.

        Only the schema's own fields count as labels. The items of a list are numbered from 0
        without gaps, as in the value.
        """
        found = [(_path_of(field.label), field) for field in labelled_fields(content, self)]
        # A model may describe an empty list as one object with null for each value.
        said = {item for path, field in found if field.value != "null" for item in _items(path)}
        found = [(path, field) for path, field in found if said.issuperset(_items(path))]
        places: dict[_Path, int] = {}
        known: Counter[_Path] = Counter()
        for item in sorted({item for path, _ in found for item in _items(path)}):
            places[item] = known[item[:-1]]
            known[item[:-1]] += 1
        return [field._replace(label=_label_of(path, places)) for path, field in found]

    def value(self, fields: Sequence[LabelledField]) -> Any:
        """Return the JSON value of the schema that the fields make up."""
        return _built(self._root, [(_path_of(field.label), field.value) for field in fields])

    def own(self, label: str) -> str | None:
        """Return a label as the schema has it, with its numbers; None if it is not one of it."""
        plain = re.sub(r"\[[0-9]*\]", "[]", label)
        if plain in self._values:
            return label
        # The items of a list of scalars need no numbers.
        return label[: label.rindex("[")] if plain.removesuffix("[]") in self._values else None


def labelled_fields(
    content: Sequence[Mapping[str, Any]], labels: Labels | None = None
) -> list[LabelledField]:
    """Return the labelled fields of an answer as it has them; empty if it has none.

    Without ``labels``, an answer has them only if it begins with one: words in double brackets are
    also links of a wiki, and a value may contain them. So a label counts at the beginning of a line
    or a block. Elsewhere it counts only if ``labels`` has it and its field has no such beginning.
    """
    blocks = [block for block in content if block.get("type") == "text"]
    texts = [str(block.get("text") or "") for block in blocks]
    text = "".join(texts)
    begins_with = text.lstrip()
    is_json_or_unlabelled = labels is None or begins_with.startswith(("{", "[", '"'))
    if is_json_or_unlabelled and _LABEL.match(begins_with) is None:
        return []
    starts = accumulate(map(len, texts), initial=0)
    first_in_block = {
        start + mark.end()
        for start, each in zip(starts, texts, strict=False)
        if (mark := _LABEL.match(each)) is not None
    }
    known = [
        (name, mark, mark[1] is not None or mark.end() in first_in_block)
        for mark in _LABEL.finditer(text)
        if (name := mark[2] if labels is None else labels.own(mark[2])) is not None
    ]
    leading = {name for name, _, leads in known if leads}
    marks = [
        (name, mark.start(), mark.end())
        for name, mark, leads in known
        if leads or (labels is not None and name not in leading)
    ]
    ends_at = [*[start for _, start, _ in marks[1:]], len(text)]
    spans = [(begins, ends) for (_, _, begins), ends in zip(marks, ends_at, strict=False)]
    cited: list[list[Citation]] = [[] for _ in marks]
    start = first = 0
    for block in blocks:
        end = start + len(str(block.get("text") or ""))
        while first < len(spans) and spans[first][1] <= start:
            first += 1
        if found := citations_of_block(block):
            for place, (begins, ends) in enumerate(spans[first:], first):
                if begins >= end:
                    break
                if text[max(start, begins) : min(end, ends)].strip():
                    cited[place] += found
        start = end
    return [
        LabelledField(name, text[begins:ends].strip(), tuple(citations))
        for (name, _, _), (begins, ends), citations in zip(marks, spans, cited, strict=True)
    ]


def texts_of(fields: Sequence[LabelledField]) -> dict[str, Any]:
    """Return the texts of the fields by label; a list for a label that is repeated."""
    texts: dict[str, list[str]] = {}
    for field in fields:
        texts.setdefault(field.label, []).append(field.value)
    return {label: found[0] if len(found) == 1 else found for label, found in texts.items()}


def _path_of(label: str) -> _Path:
    return tuple(step[1] or int(step[2] or 0) for step in _STEP.finditer(label))


def _label_of(path: _Path, places: Mapping[_Path, int]) -> str:
    """Return the label of a path, with the items of its lists at these places."""
    words = (
        f"[{places[path[: at + 1]]}]" if isinstance(step, int) else f".{step}"
        for at, step in enumerate(path)
    )
    return "".join(words).removeprefix(".")


def _items(path: _Path) -> Iterator[_Path]:
    """Yield the path of each item of a list that the path is in."""
    return (path[: at + 1] for at, step in enumerate(path) if isinstance(step, int))


def _labelled(node: _Node, label: str = "") -> Iterator[tuple[str, _Node]]:
    """Yield all below a node with their labels, in order."""
    if isinstance(node, _Object):
        for name, field in node.fields.items():
            inner = f"{label}.{name}" if label else name
            yield inner, field
            yield from _labelled(field, inner)
    elif isinstance(node, _List):
        yield f"{label}[]", node.items
        yield from _labelled(node.items, f"{label}[]")


def _built(node: _Node, found: Sequence[tuple[_Path, str]]) -> Any:
    """Return a node's value, given the paths below it and their texts."""
    if isinstance(node, _Value):
        return _values(node, [text for _, text in found])
    inner: dict[str | int, list[tuple[_Path, str]]] = {}
    for path, text in found:
        inner.setdefault(path[0], []).append((path[1:], text))
    if isinstance(node, _List):
        return [_built(node.items, inner[number]) for number in sorted(inner, key=int)]
    value: dict[str, Any] = {}
    for name, field in node.fields.items():
        texts = inner.get(name, [])
        unsaid = {text for _, text in texts} <= {"null"}
        if unsaid and name not in node.shared:
            continue  # it belongs to another alternative
        if unsaid and isinstance(field, _Object) and field.nullable:
            if texts or name in node.required:
                value[name] = None
        elif texts or (_is_list(field) and name in node.required):
            value[name] = _built(field, texts)  # a list without items has no line
    return value


def _is_list(node: _Node) -> bool:
    return isinstance(node, _List) or (isinstance(node, _Value) and "list" in node.kinds)


def _values(node: _Value, texts: Sequence[str]) -> Any:
    values = [_value(text, node) for text in texts]
    if "list" in node.kinds:
        return [value for value in values if value is not None]
    return values[0] if len(values) == 1 else values


def _value(text: str, node: _Value) -> Any:
    if text == "null" and node.kinds & {"null", "list"}:
        return None
    if text in node.literals:
        return node.literals[text]
    # With `Decimal`, the type of the schema is a number or a text. The text has all its digits.
    if "string" not in node.kinds:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return text  # validation reports the error
    return text


def _refusal(label: str, why: str) -> InvalidRequestError:
    field = f"field `{label}`: " if label else ""
    return InvalidRequestError(
        f"{field}with citations, the answer is requested as labelled fields, because the API does "
        f"not accept a schema together with citations. {why}, or turn citations off"
    )


class _SchemaReader:
    """Reads a schema's nodes. References are followed, and alternatives are united."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._parts = 0

    def node(self, schemas: Sequence[Any], label: str) -> _Node:
        """Return the node of a field; ``schemas`` are its alternatives."""
        kinds: set[str] = set()
        objects: list[Mapping[str, Any]] = []
        items: list[Any] = []
        parts = [part for schema in schemas for part in self._parts_of(schema)]
        for part in parts:
            for kind in _kinds(part):
                if kind == "object":
                    objects.append(part)
                elif kind == "array":
                    items.append(part.get("items", {}))
                else:
                    kinds.add(kind)
        told = (" ".join(str(part.get("description", "")).split()) for part in parts)
        # In braces are the bounds and defaults that `anthropic.transform_schema` could not keep.
        description = next((text for text in told if text and not text.startswith("{")), "")
        literals = {_text_of(value): value for part in parts for value in _literals(part)}
        item = self.node(items, f"{label}[]") if items else None
        if isinstance(item, _Value) and "list" not in item.kinds:
            kinds |= {"list"} | item.kinds
            literals |= item.literals
            item = None
        if item is not None and not objects and kinds <= {"null"}:
            return _List(item, description)
        if objects and item is None and kinds <= {"null"}:
            return self._object(objects, label, "null" in kinds, description)
        if objects or item is not None or not kinds <= {*_SCALARS, "list"} or not kinds:
            why = "Its type is not known, or it is one of several that cannot share a label"
            raise _refusal(label, f"{why}; change the model")
        inlined = [self._inlined(schema) for schema in schemas]
        same = all(each == inlined[0] for each in inlined)
        return _Value(kinds, literals, inlined[0] if same else {"anyOf": inlined})

    def _object(
        self, objects: Sequence[Mapping[str, Any]], label: str, nullable: bool, description: str
    ) -> _Object:
        named: dict[str, list[Any]] = {}
        for part in objects:
            for name, schema in cast("Mapping[str, Any]", part.get("properties") or {}).items():
                named.setdefault(name, []).append(schema)
        if not named:
            raise _refusal(label, "An object whose fields are not known has no labels")
        fields: dict[str, _Node] = {}
        for name, schemas in named.items():
            inner = f"{label}.{name}" if label else name
            if _NAME.fullmatch(name) is None:
                raise _refusal(inner, "Its name cannot be a label; rename it")
            fields[name] = self.node(schemas, inner)
        shared = {name for name, schemas in named.items() if len(schemas) == len(objects)}
        required = {name for name in shared if all(name in _required(part) for part in objects)}
        return _Object(fields, shared, required, nullable, description)

    def _parts_of(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the schema, or its alternatives, without references."""
        part = self._resolved(schema)
        yield part
        for word in ("anyOf", "oneOf", "allOf"):
            for inner in part.get(word) or ():
                yield from self._parts_of(inner)

    def _resolved(self, schema: Any) -> Mapping[str, Any]:
        found: Any = schema
        while True:
            self._parts += 1
            if self._parts > _MOST_PARTS:
                raise _refusal("", "This format is too large; use a smaller one")
            if not isinstance(found, Mapping):
                return {}
            known = cast("Mapping[str, Any]", found)
            if "$ref" not in known:
                return known
            name = str(known["$ref"]).rpartition("/")[2]
            found = self._root.get("$defs", self._root.get("definitions", {})).get(name, {})

    def _inlined(self, schema: Any) -> dict[str, Any]:
        """Return a value's schema without references, and the title that repeats its label."""
        field = {key: value for key, value in self._resolved(schema).items() if key != "title"}
        for word in ("anyOf", "allOf"):
            if word in field:
                field[word] = [self._inlined(inner) for inner in field[word]]
        if "items" in field:
            field["items"] = self._inlined(field["items"])
        return field


def _required(part: Mapping[str, Any]) -> Sequence[str]:
    named = part.get("required")
    return cast("Sequence[str]", named) if isinstance(named, list | tuple) else ()


def _literals(part: Mapping[str, Any]) -> list[Any]:
    """Return the values that a schema itself allows, if it lists them."""
    return [*part.get("enum", []), *([part["const"]] if "const" in part else [])]


def _text_of(literal: Any) -> str:
    return literal if isinstance(literal, str) else msgspec.json.encode(literal).decode()


def _kinds(part: Mapping[str, Any]) -> set[str]:
    """Return the types of a schema itself: of scalars, ``literal``, ``object`` and ``array``."""
    if values := _literals(part):
        return {"null" if value is None else "literal" for value in values}
    kind = part.get("type")
    return set(cast("list[str]", kind) if isinstance(kind, list) else [kind] if kind else [])


# Output -------------------------------------------------------------------------------------------

_T = TypeVar("_T")

FormatLike: TypeAlias = type[Any] | UnionType | Mapping[str, Any]
"""A type that Pydantic validates, or a JSON schema, whose answers are decoded JSON."""

_MOST_PROBLEMS = 5


class OutputFormat(Generic[_T]):
    """A type, its JSON schema as sent, and the parser from an answer's text to its value."""

    def __init__(self, kind: type[_T]) -> None:
        """Raises `InvalidRequestError`, which names the field that the API does not support."""
        self.kind = kind
        self.name: str = getattr(kind, "__name__", None) or str(kind)
        if isinstance(cast("object", kind), str | ForwardRef):
            # Pydantic would evaluate it as a Python expression, whoever wrote it.
            raise InvalidRequestError(
                "output_format must be a type or a JSON schema, not the name of a type: "
                f"{self.name[:60]!r}"
            )
        try:
            self._adapter: TypeAdapter[_T] = TypeAdapter(kind)
            schema = self._adapter.json_schema()
            # Otherwise a field could take the value of another one, whose alias is its name.
            self._by_name = _has_alias_path(self._adapter.core_schema) or None
        except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema) as error:
            raise self._refused(str(error).splitlines()[0]) from None
        except PydanticUserError as error:
            raise self._refused(error.message) from None
        except Exception as error:  # of a name in the type, or of the type's own methods
            raise InvalidRequestError(
                f"output_format {self.name}: Pydantic cannot use this type: {described(error)}"
            ) from error
        if (fault := schema_fault(schema, rewritten=True)) is not None:
            raise self._refused(fault)
        from anthropic import transform_schema

        self.schema: dict[str, Any] = transform_schema(schema)
        """The JSON schema, as it is sent."""

    def _refused(self, why: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"output_format {self.name}: the API does not accept its schema: {why}"
        )

    def parse(self, text: str) -> _T:
        """Parse an answer's text. Raises ``ValueError``, which lists each problem and its field.

        An exception of the type's own validator is its cause.
        """
        try:
            return self._adapter.validate_json(text, by_name=self._by_name)
        except ValidationError as error:
            raise ValueError(problems_of(error)) from None
        except ValueError:  # the text cannot be encoded
            raise
        except BaseException as error:
            # Pydantic lets all but ValueError and AssertionError of a validator through. They must
            # not stop a reader of many results, because the answer is billed and kept.
            if ends_the_caller(error):
                raise
            raise ValueError(f"its validator raised {described(error)}") from error

    @cached_property
    def labels(self) -> Labels | None:
        """The labels of its fields; None if it cannot be requested as labelled fields."""
        try:
            return Labels(self.schema)
        except InvalidRequestError:
            return None

    def to_json(self, value: _T) -> Any:
        """Return a value of the type as JSON values. Raises ``ValueError``."""
        try:
            return self._adapter.dump_python(value, mode="json")
        except BaseException as error:  # of the type's own serializer
            if ends_the_caller(error):
                raise
            raise ValueError(f"its serializer raised {described(error)}") from error

    def of_fields(self, fields: Sequence[LabelledField]) -> _T:
        """Return the value of labelled fields. Raises as `parse` does."""
        assert self.labels is not None
        return self.parse(msgspec.json.encode(self.labels.value(fields)).decode())

    def __reduce__(self) -> tuple[Any, ...]:
        return output_format_of, (self.kind,)


def _has_alias_path(schema: object) -> bool:
    """Return whether a field has only paths as aliases: its JSON schema has the field's name."""
    if isinstance(schema, Mapping):
        node = cast("Mapping[str, object]", schema)
        paths = node.get("validation_alias")
        if isinstance(paths, list) and not any(
            isinstance(path, list) and len(cast("list[object]", path)) == 1
            for path in cast("list[object]", paths)
        ):
            return True
        return any(map(_has_alias_path, node.values()))
    return isinstance(schema, list | tuple) and any(
        map(_has_alias_path, cast("Sequence[object]", schema))
    )


def problems_of(error: ValidationError) -> str:
    """Return the validation problems by field: ``total: Input should be a valid number``."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines: list[str] = []
    for problem in found[:_MOST_PROBLEMS]:
        place = ".".join(map(str, problem["loc"]))
        lines.append(f"{place}: {problem['msg']}" if place else problem["msg"])
    if len(found) > _MOST_PROBLEMS:
        lines.append(f"and {len(found) - _MOST_PROBLEMS} more")
    return "; ".join(lines)


def parse_json(text: str) -> Any:
    """Return the JSON value in an answer's text. Raises ``ValueError`` if it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        # The caller reports that the answer is not valid JSON.
        raise ValueError(str(error).removeprefix("JSON is malformed: ")) from None


def written_kind(kind: object) -> str:
    """Return what tells equal types apart: ``A | B`` equals ``B | A``, but is parsed otherwise.

    It is empty for a class, which equals no other.
    """
    return "" if isinstance(kind, type) else repr(kind)


@lru_cache(maxsize=128)
def _made(kind: object, _written: str) -> OutputFormat[Any]:
    return OutputFormat(cast("type[Any]", kind))


def output_format_of(kind: type[Any] | UnionType) -> OutputFormat[Any]:
    """Return the format of a type, created once. Raises `InvalidRequestError`."""
    try:
        return _made(kind, written_kind(kind))
    except TypeError:  # of a type that cannot be hashed
        return OutputFormat(cast("type[Any]", kind))


# The schema in a response format ------------------------------------------------------------------

_SCHEMA_WORDS = frozenset(
    ("type", "properties", "anyOf", "oneOf", "allOf", "$ref", "enum", "const")
)


def checked_schema(value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the JSON schema in a ``response_format``.

    Raises ``ValueError`` if there is none, or if the API does not accept it.
    """
    schema = schema_in(value)
    if schema is None:
        raise ValueError("is not a JSON schema; write the schema itself")
    if (fault := schema_fault(schema)) is not None:
        raise ValueError(f"the API does not accept this schema: {fault}")
    return schema


def schema_in(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the JSON schema in a ``response_format``. Raises ``ValueError`` if there is none."""
    if value is None:
        return None
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        raise ValueError(
            "type json_object does not define the answer's format; give a JSON schema: "
            "{type: json_schema, schema: {…}}"
        )
    schema: object = value
    if kind == "json_schema":
        schema = value.get("schema")
        if schema is None:
            schema = value.get("json_schema")
            if isinstance(schema, Mapping) and "schema" in schema:
                # OpenAI's form: {type: json_schema, json_schema: {name: …, schema: {…}}}.
                schema = cast("Mapping[str, Any]", schema)["schema"]
    if not isinstance(schema, Mapping) or not _SCHEMA_WORDS.intersection(
        cast("Mapping[str, Any]", schema)
    ):
        raise ValueError(
            "is not a JSON schema; write the schema itself, or {type: json_schema, schema: {…}}"
        )
    return dict(cast("Mapping[str, Any]", schema))
