"""Text that is safe for a terminal: control characters are escaped.

Names, headers, errors and answers come from files and servers. A control sequence in one of them
could rewrite the screen, set the clipboard (OSC 52) or show a path backwards.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
