"""Answers as HTML: Markdown is rendered, and whatever is not text of it is taken out."""

from __future__ import annotations

from functools import cache
from typing import Final

import nh3
from markdown_it import MarkdownIt
from markupsafe import Markup

from claude_batch.core.terminal import visible

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
