"""Text on its way to a terminal: what would steer the terminal is made visible.

Names, headers, errors and answers come from files and servers. A control sequence in one of them
could rewrite the screen, set the clipboard (OSC 52) or show a path backwards.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["cell", "encodable", "visible", "visible_json"]

# C0 but for tab and line feed, DEL, C1, overrides of the writing direction, lone surrogates.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LONE = re.compile("[\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with every steering character written out, as ``\x1b`` or ``\u202e``."""
    return _STEERING.sub(_written_out, text)


def encodable(text: str) -> str:
    """The text with lone surrogates written out, which no output takes."""
    return _LONE.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def visible_json(text: str) -> str:
    """JSON with every steering character as an escape of JSON: the value stays the same."""
    # They can stand in strings only: outside of them JSON has but tabs and line ends.
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def cell(text: str) -> Text:
    """Text for one of rich's tables, where nothing in it is markup or an emoji's name."""
    from rich.text import Text

    return Text(visible(text))
