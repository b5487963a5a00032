"""Reads pages back: that they are well formed, contact nothing and run nothing but our scripts."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser

from autosync.report.document import SCRIPTS

_VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Reads a page and refuses one whose elements are not nested; `content` has the text of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.content: dict[str, list[str]] = {"script": [], "style": []}
        self.text = ""
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag in self.content:
            self.content[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside in self.content:
            self.content[inside][-1] += data
        else:
            self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(page: str) -> Reader:
    assert page.startswith("<!DOCTYPE html>\n<html lang=")
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader._open == []
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for attributes in reader.of("a")]
    assert {link for link in links if link} <= {f"#{one}" for one in ids}
    return reader


def check_deaf(page: str) -> Reader:
    """Only our own scripts and style are in the page, its policy allows them alone, and nothing is loaded."""
    found = read(page)
    assert [one.get("type") for one in found.of("script")] == ["application/json", *[None] * len(SCRIPTS)]
    assert len(found.of("style")) == 1
    handlers = [name for _, attributes in found.tags for name in attributes if name.startswith("on") or name == "style"]
    assert handlers == []
    sources = [value or "" for _, attributes in found.tags for name, value in attributes.items() if name == "src"]
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    (policy,) = (one["content"] for one in found.of("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for kind, texts in (("script-src", found.content["script"][1:]), ("style-src", found.content["style"])):
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert rules[kind].split() == [f"'sha256-{one}'" for one in hashes]
    return found
