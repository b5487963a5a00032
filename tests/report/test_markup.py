"""Text stays text, whatever characters it contains."""

from __future__ import annotations

import json
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from autosync.report.markup import Markup, element, items, joined, json_in_html

_VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda some: st.lists(some, max_size=4))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def _read(markup: str) -> _Reader:
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    return reader


def _speakable(text: str) -> bool:
    return "\ufffd" not in text and element("p", text).count("\ufffd") == 0


@given(st.text(), st.text())
def test_text_and_attributes_are_read_as_they_were(text: str, value: str) -> None:
    found = _read(element("p", text, title=value))
    assert [tag for tag, _ in found.tags] == ["p"]
    if _speakable(text):
        assert found.text == text
    if _speakable(value):
        assert found.tags[0][1] == {"title": value}


@given(_VALUES)
def test_json_cannot_end_its_element(value: object) -> None:
    written = json_in_html(value)
    assert not set("<>&\u2028\u2029") & set(written)
    if "\ufffd" not in written:
        assert json.loads(written) == value


def test_only_elements_are_markup() -> None:
    assert element("b", "<i>", Markup("<i>")) == "<b>&lt;i&gt;<i></b>"
    assert isinstance(joined("<", [None, ["x"]]), Markup)
    assert joined("<", [None, ["x"]]) == "&lt;x"
    assert items(["a", "<"]) == "<ul><li>a</li><li>&lt;</li></ul>"
    assert items([]) == ""
    assert element("meta", http_equiv="x", hidden=True, content=None, id=False) == '<meta http-equiv="x" hidden>'
    assert element("p", "\x00\x1b\ud800") == "<p>\ufffd\ufffd\ufffd</p>"
