"""YAML that people write: read with limits on expansion, and written as they would.

PyYAML follows aliases and merge keys without limit, recurses once per level, and multiplies the
places of a sexagesimal number one by one. A file of a kilobyte can therefore take hours or all
memory. An error is reported with its line.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

MOST_LEVELS = 100
"""Most levels of nesting, including those that aliases add."""

MOST_REPEATED = 100_000
"""Most values that the aliases of a file may expand to in total."""

LONGEST_NUMBER = 1000
"""Most characters of a number."""

_SEPARATORS = {0x85: "\U000ffffe", 0x2028: "\U000fffff", 0x2029: "\U0010fffe"}
"""Characters that are line breaks in YAML 1.1 and text in YAML 1.2, and what stands for each.

PyYAML would replace them in texts, and end block texts at them. Those that stand for them are kept
by Unicode for such uses, and never occur in a text."""
_WRITTEN = {ord(instead): chr(code) for code, instead in _SEPARATORS.items()}

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


_REMEDIES = (
    ("mapping values are not allowed", "put a text with a colon in quotes, and align the keys"),
    (r"found character '\t'", "indent with spaces, not with tabs"),
    ("that cannot start any token", "put a text that begins with this character in quotes"),
    ("expected the node content", "put a text that begins with this character in quotes"),
    ("found undefined alias", "put a text that begins with * in quotes"),
    ("while scanning an alias", "put a text that begins with * in quotes"),
    ("while scanning an anchor", "put a text that begins with & in quotes"),
    ("could not determine a constructor", "put a text that begins with ! in quotes"),
    ("while scanning a quoted scalar", "close the quote"),
    ("unknown escape character", r"write a backslash as \\, or use single quotes"),
    ("while parsing a flow", "close the bracket, or put a text that begins with one in quotes"),
    ("could not find expected ':'", "write a colon and a space after each key"),
    (
        "expected <block end>",
        "align the keys, and put a text with quotes or brackets in quotes as a whole",
    ),
    ("while scanning a block scalar", "begin the text on the line after `|` or `>`"),
    ("found unhashable key", "write each key as a text"),
    ("expected a single document", "keep one"),
)
"""What to do about an error that has these words of PyYAML; the first one that fits."""


class YamlFault(Exception):
    """Invalid YAML: ``words`` is the reason, ``line`` (from 1) the place, if known."""

    def __init__(self, words: str, line: int | None) -> None:
        super().__init__(words)
        self.words = words
        self.line = line


@contextmanager
def yaml_faults(text: str) -> Generator[None]:
    """Convert any exception of PyYAML about ``text`` within the block to `YamlFault`."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = " ".join(filter(None, (error.context, error.problem)))
        remedy = next((f"; {each}" for part, each in _REMEDIES if part in words), "")
        raise YamlFault(words + remedy, None if mark is None else mark.line + 1) from None
    except ReaderError as error:
        character = error.character
        code = ord(character) if isinstance(character, str) else character
        line = text.count("\n", 0, error.position) + 1
        raise YamlFault(f"{error.reason}: U+{code:04X}; remove it", line) from None
    except (yaml.YAMLError, ValueError) as error:
        raise YamlFault(" ".join(str(error).split()), None) from None
    except RecursionError:
        raise YamlFault("nested too deeply", None) from None


def pairs(node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    """Return the keys and values of a mapping, doubled keys included."""
    return cast("list[tuple[yaml.Node, yaml.Node]]", node.value)


class _Extent(NamedTuple):
    """The size of a value after its aliases are expanded."""

    values: int
    levels: int


class BoundedLoader(yaml.SafeLoader):
    """`yaml.SafeLoader` that rejects unlimited expansion, nesting and numbers.

    An anchor that contains itself is rejected too: it is infinite, and cannot be sent.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream if stream.isascii() else stream.translate(_SEPARATORS))
        self._extents: dict[str, _Extent] = {}
        self._level = 0
        self._deepest = 0
        self._values = 0
        self._repeated = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = cast("yaml.Event", self.peek_event())  # pyright: ignore[reportUnknownMemberType]
        anchor: str | None = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            self._count_alias(event, str(anchor))
            return super().compose_node(parent, index)
        around, before = self._deepest, self._values
        self._values += 1
        self._level += 1
        self._deepest = self._level
        self._check_levels(event)
        node = super().compose_node(parent, index)
        if anchor is not None:
            self._extents[anchor] = _Extent(self._values - before, self._deepest - self._level + 1)
        self._level -= 1
        self._deepest = max(around, self._deepest)
        return node

    def _count_alias(self, event: yaml.Event, anchor: str) -> None:
        extent = self._extents.get(anchor)
        if extent is None:
            if anchor in self.anchors:  # it is not complete
                raise _fault("an anchor contains itself; write the value out", event.start_mark)
            return  # PyYAML reports it
        self._values += extent.values
        self._repeated += extent.values
        if self._repeated > MOST_REPEATED:
            raise _fault(
                f"its aliases expand to more than {MOST_REPEATED:,} values; write the values out",
                event.start_mark,
            )
        self._deepest = max(self._deepest, self._level + extent.levels)
        self._check_levels(event)

    def _check_levels(self, event: yaml.Event) -> None:
        if self._deepest > MOST_LEVELS:
            raise _fault(f"it is nested more than {MOST_LEVELS} levels deep", event.start_mark)

    def compose_scalar_node(self, anchor: dict[Any, yaml.Node]) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if node.tag in _NUMBERS and len(node.value) > LONGEST_NUMBER:
            raise _fault(
                f"a number of more than {LONGEST_NUMBER:,} characters; put a text in quotes",
                node.start_mark,
            )
        if node.tag in _NUMBERS and ":" in node.value:
            # YAML 1.1 counts in sixties here, which nobody means.
            raise _fault(
                f"{node.value} would be a number in base 60; put a text in quotes, and write a "
                "duration as 90s or 30m",
                node.start_mark,
            )
        if not node.value.isascii():
            node.value = node.value.translate(_WRITTEN)
            try:
                node.value.encode()
            except UnicodeEncodeError:
                words = "an escape is half of a surrogate pair (\\ud800 to \\udfff)"
                raise _fault(words, node.start_mark) from None
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)  # pyright: ignore[reportUnknownMemberType]
        except (ValueError, LookupError, AttributeError, OverflowError):
            # Errors that PyYAML does not catch when a scalar does not fit its tag.
            if not isinstance(node, yaml.ScalarNode):
                raise
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(
                None, None, f"this is not a valid {kind}", node.start_mark
            ) from None


def _fault(words: str, mark: Any) -> ComposerError:
    return ComposerError(None, None, words, mark)


# Writing ------------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Repeats values instead of using anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if text.translate(_SEPARATORS) != text:
        # In every other style, PyYAML breaks the line there and adds blanks that it reads back.
        style = '"'
    return dumper.represent_scalar(  # pyright: ignore[reportUnknownMemberType] - its stubs
        "tag:yaml.org,2002:str", text, style=style
    )


_Dumper.add_representer(str, _represent_text)


def yaml_of(value: Any) -> str:
    """Return a value as YAML. Raises ``ValueError`` for one that YAML cannot hold."""
    try:
        return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
