"""A small writer of HTML in which text cannot become markup.

Elements are made from their content. Plain strings are text and are escaped; only results of `element` are markup. So
names from a study stay text, whatever characters they contain.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

_VOID = frozenset({"meta", "img", "br"})
# Control characters that HTML forbids, and halves of pairs, which UTF-8 cannot hold.
_UNSPEAKABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_ESCAPED_IN_JSON = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


class Markup(str):
    """HTML, as opposed to text."""

    __slots__ = ()


Content = str | Iterable["Content"] | None


def element(tag: str, *content: Content, **attributes: str | int | bool | None) -> Markup:
    """Return an element. `class_` sets the attribute `class`, and `_` in other names becomes `-`.

    Attributes with None or False are left out.
    """
    opened = "".join([f"<{tag}", *(_attribute(name, value) for name, value in attributes.items()), ">"])
    if tag in _VOID:
        return Markup(opened)
    return Markup(f"{opened}{joined(*content)}</{tag}>")


def joined(*content: Content) -> Markup:
    """Return several pieces of content in a row."""
    return Markup("".join(map(_written, content)))


def escaped(text: str) -> str:
    """Return the text, escaped for an element or a quoted attribute."""
    return html.escape(_UNSPEAKABLE.sub("\ufffd", text), quote=True)


def json_in_html(value: Any) -> Markup:
    """Return JSON for a script element. No part of it can end the element."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Markup(_UNSPEAKABLE.sub("\ufffd", text).translate(_ESCAPED_IN_JSON))


def items(texts: Sequence[Content]) -> Markup:
    """Return a list of items; empty without items."""
    return element("ul", [element("li", text) for text in texts]) if texts else Markup()


def _written(content: Content) -> str:
    if content is None:
        return ""
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return escaped(content)
    return "".join(map(_written, content))


def _attribute(name: str, value: str | int | bool | None) -> str:  # noqa: FBT001 - the value of an attribute
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escaped(str(value))}"'
