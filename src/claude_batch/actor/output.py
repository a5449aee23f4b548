"""`OutputFormat`: the type of the answers, as a JSON schema and a parser.

Any type that Pydantic can validate works: a model, a dataclass, ``list[Invoice]``.
`anthropic.transform_schema` describes in words what the API's schemas do not support (bounds,
patterns of a model's own). The parser checks it when the answer is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

import msgspec
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from claude_batch.actor.labels import LabelledField, values_of
from claude_batch.core.errors import InvalidRequestError
from claude_batch.wire.schemas import schema_fault

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
