"""Pages as HTML: Jinja templates with autoescape, the functions that write values, and Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final
from urllib.parse import quote

import nh3
from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from claude_batch.core.quantities import count_of, dollars, roughly, write_usd
from claude_batch.core.settings import command_naming
from claude_batch.core.states import RequestState, RunState
from claude_batch.core.terminal import visible

# Templates ----------------------------------------------------------------------------------------

TONES: Final[Mapping[str, str]] = {
    RunState.FINISHED: "good",
    RunState.RUNNING: "busy",
    RunState.STORING: "busy",
    RunState.PARKED: "calm",
    RunState.HELD: "warn",
    RunState.UNKNOWN: "warn",
    RunState.HALTED: "bad",
    RunState.CANCELLING: "calm",
    RunState.CANCELLED: "calm",
    RequestState.SUCCEEDED: "good",
    RequestState.QUEUED: "calm",
    RequestState.HELD: "warn",
    RequestState.PACKED: "busy",
    RequestState.CONTINUING: "busy",
    "in_progress": "busy",
    "submitting": "busy",
    "ended": "busy",
    "collected": "good",
    "live": "good",
}
"""The colour of a state. States that are not here are failures."""


def _written(value: Any) -> Any:
    r"""Write control characters and overrides of the writing direction as ``\x1b`` and ``\u202e``.

    Jinja calls it for every value that a template writes, and escapes the result for HTML.
    """
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def moment(seconds: float | None) -> Markup:
    """Return a time as ``<time>``; empty for None."""
    if seconds is None:
        return Markup("")
    at = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        at.isoformat(timespec="seconds"), f"{at:%Y-%m-%d %H:%M:%S} UTC"
    )


_now: ContextVar[float] = ContextVar("now")
"""The ledger's time for which a page is drawn."""


def age(seconds: float | None) -> Markup:
    """Return how long ago a time was, as ``<time>``; empty for None."""
    if seconds is None:
        return Markup("")
    at = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{0}" title="{1}">{2}</time>').format(
        at.isoformat(timespec="seconds"),
        f"{at:%Y-%m-%d %H:%M:%S} UTC",
        f"{roughly(_now.get() - seconds)} ago",
    )


def size(number: float) -> str:
    """Return bytes as ``1.2 MB``."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


_QUOTED = re.compile(r"`([^`]+)`")


def coded(text: str) -> Markup:
    """Return a message of ours as HTML, with the commands that it names in backticks as code."""
    parts = _QUOTED.split(visible(text))
    marked = (Markup("<code>{}</code>") if place % 2 else "{}" for place in range(len(parts)))
    return Markup("").join(
        Markup(form).format(part) for form, part in zip(marked, parts, strict=True)
    )


def money(nano: int) -> str:
    """Return an amount with the digits that a person needs: ``$0``, ``$0.0042``, ``$12.30``."""
    return dollars(nano) if nano else "$0"


def words(state: str) -> str:
    """Return a state as people read it: ``in progress``."""
    return str(state).replace("_", " ")


def tone(state: str) -> str:
    """Return the colour of a state."""
    return TONES.get(state, "bad")


def address(*parts: object) -> str:
    """Return a path of this server from parts, each of which is escaped."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)


@cache
def _environment() -> Environment:
    made: Any = Environment(
        loader=PackageLoader("claude_batch.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_written,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters = (age, coded, moment, money, roughly, size, tone, words)
    functions = (address, count_of)
    named = {"naming": command_naming, "usd": write_usd}
    made.filters.update({each.__name__: each for each in filters}, **named)
    made.globals.update({each.__name__: each for each in functions})
    return made


def render(template: str, now: float, **values: Any) -> bytes:
    """Return a page; ages on it count to ``now``, which should be the ledger's time."""
    _now.set(now)
    # A lone surrogate in a text of the ledger has been written out by `_written`.
    return _environment().get_template(template).render(values, now=now).encode()


# Texts of a model ---------------------------------------------------------------------------------

LONGEST: Final = 40_000
"""Characters of one text on a page. Of longer ones the beginning is shown; all of it can be
downloaded."""

_TAGS: Final = {
    *("p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "a"),
    *("h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}
_SCHEMES: Final = ("https://", "http://", "mailto:")
_DEEPER: Final = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6", "h6": "h6"}
"""An answer's headings stand below those of the page."""


@cache
def _markdown() -> MarkdownIt:
    # HTML in an answer is text. The nesting limit keeps a hostile answer from taking seconds.
    made = MarkdownIt("commonmark", {"html": False, "maxNesting": 20})
    made.enable(["table", "strikethrough"])
    # A picture from elsewhere would tell its server who reads this. Its words stay as a link.
    made.disable("image")
    # A relative address would be one of the dashboard's own pages.
    made.validateLink = _is_elsewhere
    return made


def _is_elsewhere(url: str) -> bool:
    return url.lower().startswith(_SCHEMES)


def render_markdown(text: str) -> Markup:
    """Return a text that a model wrote as HTML without scripts, styles, pictures and forms."""
    markdown = _markdown()
    tokens = markdown.parse(visible(text[:LONGEST]))
    for token in tokens:
        if token.type in {"heading_open", "heading_close"}:
            token.tag = _DEEPER[token.tag]
        elif token.type == "th_open":
            token.attrs["scope"] = "col"
    html = markdown.renderer.render(tokens, markdown.options, {})
    return Markup(
        nh3.clean(
            html,
            tags=_TAGS,
            attributes={"a": {"href"}, "th": {"scope"}, "ol": {"start"}},
            url_schemes={"http", "https", "mailto"},
            link_rel="noopener noreferrer nofollow",
        )
    )
