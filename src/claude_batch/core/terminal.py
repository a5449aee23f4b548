"""Text that is safe for a terminal: control characters are escaped.

Names, headers, errors and answers come from files and servers. A control sequence in one of them
could rewrite the screen, set the clipboard (OSC 52) or show a path backwards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

# C0 except tab and line feed, DEL, C1, overrides of the writing direction, lone surrogates.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LONE = re.compile("[\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return the text with every control character escaped, as ``\x1b`` or ``\u202e``."""
    return _STEERING.sub(_written_out, text)


def encodable(text: str) -> str:
    """Return the text with lone surrogates escaped, which no output encoding accepts."""
    return _LONE.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def visible_json(text: str) -> str:
    """Return JSON with every control character as a JSON escape; the value stays the same."""
    # They can only occur in strings: outside of them JSON has only tabs and line ends.
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def cell(text: str) -> Text:
    """Return text for a rich table, without interpreting markup or emoji names."""
    from rich.text import Text

    return Text(visible(text))


# Tables -------------------------------------------------------------------------------------------

ColumnKind = Literal["number", "name", "text"]
"""Numbers and names are never cut or folded; a text is folded if the terminal is narrow."""

_LEAST_TEXT = 9
"""Columns of the terminal that a folded text gets at least."""


class Rows(msgspec.Struct, frozen=True):
    """A table for a terminal; if that is too narrow for the numbers and names, a line for each row.

    Empty columns are left out before that. The first column names the row. Values are plain text,
    and escaped here.
    """

    columns: Sequence[tuple[str, ColumnKind]]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Implement rich's protocol."""
        for shown in (self, self._without_empty_columns()):
            if shown._least_width() <= options.max_width:
                yield shown._table()
                return
        for row in self.rows:
            first, *values = row
            named = [
                f"{name} {value}"
                for (name, _), value in zip(self.columns[1:], values, strict=True)
                if value
            ]
            yield cell(f"{first}: {', '.join(named)}")
        if self.caption:
            yield cell(self.caption)

    def _without_empty_columns(self) -> Rows:
        used = [place for place in range(len(self.columns)) if any(row[place] for row in self.rows)]
        rows = [[row[place] for place in used] for row in self.rows]
        return Rows([self.columns[place] for place in used], rows, self.caption)

    def _least_width(self) -> int:
        from rich.cells import cell_len

        least = 1
        for place, (name, kind) in enumerate(self.columns):
            width = max(
                cell_len(visible(each)) for each in (name, *(row[place] for row in self.rows))
            )
            least += 3 + (min(width, _LEAST_TEXT) if kind == "text" else width)
        return least

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(caption=self.caption or None)
        for name, kind in self.columns:
            justify = "right" if kind == "number" else "left"
            table.add_column(name, justify=justify, no_wrap=kind != "text", overflow="fold")
        for row in self.rows:
            table.add_row(*map(cell, row))
        return table
