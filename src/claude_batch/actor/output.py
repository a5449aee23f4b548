"""`OutputFormat`: the type of the answers, as a JSON schema and a parser, or as labelled fields.

Any type that Pydantic can validate works: a model, a dataclass, ``list[Invoice]``.
`anthropic.transform_schema` describes in words what the API's schemas do not support (bounds,
patterns of a model's own). The parser checks it when the answer is read.

The API rejects a schema together with citations, so an answer with both is written as labelled
fields: each is a line of ``[[name]] value``. The text after a label belongs to its field, and so do
the citations of the blocks that contain the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from claude_batch.core.citations import Citation
from claude_batch.core.errors import InvalidRequestError
from claude_batch.wire.messages import citations_of_block
from claude_batch.wire.schemas import schema_fault

# Labelled fields ----------------------------------------------------------------------------------

_LABEL = re.compile(r"\[\[([A-Za-z_][A-Za-z0-9_]*)\]\]")
_SCALARS = frozenset(("string", "integer", "number", "boolean", "null"))

_ASK = """\
Answer with the fields below and with nothing else. Write each on a line of its own: its label, in \
double square brackets, and then its value as plain text. The JSON schema behind a label says what \
the value may be. Of a field that is a list, write one line with the label for each item. Where \
the documents do not say a value, write null. Cite the documents for every value, also though it \
stands behind a label.
"""


class LabelledField(NamedTuple):
    """The part of an answer after one label."""

    name: str
    value: str
    citations: tuple[Citation, ...]


def instruction(schema: Mapping[str, Any], key: str | None = None) -> str:
    """Return the instruction for the model to answer in a flat schema's fields.

    Raises `InvalidRequestError`, which names the field, for a schema that is not flat.
    """
    root = _resolved(schema, schema)
    properties: object = root.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        raise InvalidRequestError(
            "with citations, the answer is requested as labelled fields, because the API does "
            "not accept a schema together with citations. This format has no fields; use a model "
            "with fields, or turn citations off",
            key=key,
        )
    lines = [_ASK]
    for name, field in cast("Mapping[str, Any]", properties).items():
        kinds = _kinds(field, schema)
        if _LABEL.fullmatch(f"[[{name}]]") is None or not kinds <= {*_SCALARS, "list"}:
            raise InvalidRequestError(
                f"field `{name}`: with citations, the answer is requested as labelled fields, "
                "because the API does not accept a schema together with citations. A nested "
                "value cannot be labelled; flatten the model, or turn citations off",
                key=key,
            )
        lines.append(f"[[{name}]] {msgspec.json.encode(_inlined(field, schema)).decode()}")
    return "\n".join(lines)


def labelled_fields(
    content: Sequence[Mapping[str, Any]], schema: Mapping[str, Any] | None = None
) -> list[LabelledField]:
    """Return the labelled fields of an answer, in order; empty if it has none.

    With a schema, only its own fields count as labels.
    """
    blocks = [block for block in content if block.get("type") == "text"]
    text = "".join(str(block.get("text") or "") for block in blocks)
    begins_with = text.lstrip()
    if begins_with.startswith(("{", "[", '"')) and _LABEL.match(begins_with) is None:
        return []  # it is JSON
    names = None if schema is None else _resolved(schema, schema).get("properties", {})
    labels = [label for label in _LABEL.finditer(text) if names is None or label[1] in names]
    ends_at = [*[label.start() for label in labels[1:]], len(text)]
    spans = [(label.end(), end) for label, end in zip(labels, ends_at, strict=False)]
    cited: list[list[Citation]] = [[] for _ in labels]
    start = 0
    for block in blocks:
        end = start + len(str(block.get("text") or ""))
        if found := citations_of_block(block):
            for place, (begins, ends) in enumerate(spans):
                if text[max(start, begins) : min(end, ends)].strip():
                    cited[place] += found
        start = end
    return [
        LabelledField(label[1], text[begins:ends].strip(), tuple(citations))
        for label, (begins, ends), citations in zip(labels, spans, cited, strict=True)
    ]


def values_of(
    fields: Sequence[LabelledField], schema: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the fields' values as JSON values; as texts if no schema has their types.

    A repeated field is a list, and so is each field that is a list in the schema.
    """
    properties: Mapping[str, Any] = {}
    if schema is not None:
        properties = _resolved(schema, schema).get("properties", {})
    values: dict[str, list[Any]] = {}
    for field in fields:
        kinds = _kinds(properties[field.name], schema or {}) if field.name in properties else None
        values.setdefault(field.name, []).append(_value(field.value, kinds))
    found: dict[str, Any] = {}
    for name, several in values.items():
        if name in properties and "list" in _kinds(properties[name], schema or {}):
            found[name] = [value for value in several if value is not None]
        else:
            found[name] = several[0] if len(several) == 1 else several
    return found


def _value(text: str, kinds: set[str] | None) -> Any:
    if kinds is None:
        return text
    if text == "null" and kinds & {"null", "list"}:
        return None
    if "string" not in kinds:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return text  # validation reports the error
    return text


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = schema
    while isinstance(found, Mapping) and "$ref" in found:
        name = str(cast("Mapping[str, Any]", found)["$ref"]).rpartition("/")[2]
        found = root.get("$defs", root.get("definitions", {})).get(name, {})
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _inlined(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field's schema without references, and without the title that repeats its label."""
    field = {key: value for key, value in _resolved(schema, root).items() if key != "title"}
    for word in ("anyOf", "allOf"):
        if word in field:
            field[word] = [_inlined(inner, root) for inner in field[word]]
    if "items" in field:
        field["items"] = _inlined(field["items"], root)
    return field


def _kinds(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """Return a field's kinds: scalar types, ``list`` of scalars, ``nested`` for all else."""
    field = _resolved(schema, root)
    kinds: set[str] = set()
    for word in ("anyOf", "allOf"):
        for inner in field.get(word, []):
            kinds |= _kinds(inner, root)
    values = [*field.get("enum", []), *([field["const"]] if "const" in field else [])]
    for value in values:
        kinds.add("string" if isinstance(value, str) else "null" if value is None else "number")
    kind = field.get("type")
    for each in cast("list[str]", kind) if isinstance(kind, list) else [kind] if kind else []:
        if each == "array":
            items = _kinds(field.get("items", {}), root)
            kinds |= ({"list"} | items) if items and items <= _SCALARS else {"nested"}
        else:
            kinds.add(each if each in _SCALARS else "nested")
    return kinds or {"nested"}


# Output -------------------------------------------------------------------------------------------

_T = TypeVar("_T")

_MOST_PROBLEMS = 5


class OutputFormat(Generic[_T]):
    """A type, its JSON schema as sent, and the parser from an answer's text to its value."""

    def __init__(self, kind: type[_T]) -> None:
        """Raises `InvalidRequestError`, which names the field that the API does not support."""
        self.kind = kind
        self.name: str = getattr(kind, "__name__", None) or str(kind)
        try:
            self._adapter: TypeAdapter[_T] = TypeAdapter(kind)
            schema = self._adapter.json_schema()
        except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema) as error:
            raise self._refused(str(error).splitlines()[0]) from None
        except PydanticUserError as error:
            raise self._refused(error.message) from None
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
        """Parse an answer's text. Raises ``ValueError``, which lists each problem and its field."""
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise ValueError(problems_of(error)) from None

    def of_fields(self, fields: Sequence[LabelledField]) -> _T:
        """Return the value of labelled fields. Raises as `parse` does."""
        return self.parse(msgspec.json.encode(values_of(fields, self.schema)).decode())

    def __reduce__(self) -> tuple[Any, ...]:
        return output_format_of, (self.kind,)


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
        raise ValueError(f"it is not valid JSON: {error}") from None


@lru_cache(maxsize=128)
def _made(kind: object) -> OutputFormat[Any]:
    return OutputFormat(cast("type[Any]", kind))


def output_format_of(kind: type[_T]) -> OutputFormat[_T]:
    """Return the format of a type, created once. Raises `InvalidRequestError`."""
    try:
        return _made(kind)
    except TypeError:  # of a type that cannot be hashed
        return OutputFormat(kind)
