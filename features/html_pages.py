"""What a page says to a person, and what is wrong with its HTML."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise

_VOID = {"meta", "link", "input", "br", "hr", "img", "col", "wbr"}
_OWN_END = {"rect", "path", "circle"}
_UNREAD = {"script", "style", "title"}


@dataclass
class Html:
    """A page that was read."""

    text: str = ""
    """Its words, without what only programs read; blanks are single."""
    tags: list[tuple[str, dict[str, str | None]]] = field(
        default_factory=list[tuple[str, dict[str, str | None]]]
    )
    faults: list[str] = field(default_factory=list[str])

    def values(self, name: str) -> list[str]:
        """The values of an attribute, wherever it stands."""
        return [value or "" for _, all_ in self.tags for key, value in all_.items() if key == name]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found = Html()
        self._open: list[str] = []
        self._words: list[str] = []
        self._labelled = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.found.faults.append(f"<{tag}> has an attribute twice: {names}")
        self.found.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag not in {"a", "code", "strong", "em", "time", "span", "bdi"}:
            self._words.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _OWN_END:
            self.found.faults.append(f"<{tag}/> is no element of its own")
        self.found.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.found.faults.append(f"</{tag}> ends no open element; open: {self._open[-3:]}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in _UNREAD:
            self._words.append(data)

    def close(self) -> None:
        super().close()
        self.found.text = re.sub(r"\s+", " ", "".join(self._words)).strip()
        self.found.faults += [f"<{tag}> is never closed" for tag in self._open]


def read_html(body: str) -> Html:
    """Read a page, and list what is wrong with it."""
    reader = _Reader()
    reader.feed(body)
    reader.close()
    found = reader.found
    tags = found.tags
    if not body.startswith("<!doctype html>"):
        found.faults.append("no doctype")
    if ("html", {"lang": "en"}) not in tags:
        found.faults.append("no language")
    ids = found.values("id")
    found.faults += [f"two elements have the id {each}" for each in {*ids} if ids.count(each) > 1]
    for name in ("aria-labelledby", "for"):
        wrong = [each for each in found.values(name) if each not in ids]
        found.faults += [f"{name}={each!r} names no element" for each in wrong]
    for tag, given in tags:
        inline = [name for name in given if name == "style" or name.startswith("on")]
        if inline:
            found.faults.append(f"<{tag}> has {inline}, which the policy forbids")
        if tag in {"script", "style"} and not given.get("src"):
            found.faults.append(f"an inline <{tag}>")
        if tag == "svg" and given.get("aria-hidden") != "true" and not given.get("aria-label"):
            found.faults.append("a picture without words")
        if tag in {"input", "select", "textarea"} and given.get("type") != "hidden":
            is_labelled = "id" in given or "aria-label" in given or _stands_in_label(body, given)
            if not is_labelled:
                found.faults.append(f"<{tag} name={given.get('name')!r}> has no label")
        if tag == "th" and not given.get("scope"):
            found.faults.append("a <th> without a scope")
        for name in ("src", "href", "action"):
            if re.match(r"\s*(?:[a-z]+:)?//", given.get(name) or "") and tag != "a":
                found.faults.append(f"<{tag}> is from elsewhere: {given[name]}")
    heads = [tag for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    if heads.count("h1") != 1:
        found.faults.append(f"{heads.count('h1')} first headings")
    for before, after in pairwise(heads):
        if int(after[1]) > int(before[1]) + 1:
            found.faults.append(f"an <{after}> follows an <{before}>")
    return found


def _stands_in_label(body: str, given: dict[str, str | None]) -> bool:
    name = re.escape(given.get("name") or "")
    return (
        re.search(rf"<label>[^<]*<\w+[^>]* name=\"{name}\"|<label>[^<]*<\w+ name=\"{name}\"", body)
        is not None
    )
