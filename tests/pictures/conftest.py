"""Reads a picture back: checks that it is safe to show, and finds its content."""

import re
from collections import Counter
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest

SPACE = "{http://www.w3.org/2000/svg}"
TAGS = {"svg", "title", "desc", "style", "rect", "path", "text"}
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


class Seen:
    """A picture, read back by a parser of XML and held to what every picture holds to."""

    def __init__(self, text: str) -> None:
        root = ET.fromstring(text)
        self.elements = [element for element in root.iter() if element is not root]
        self.width, self.height = float(root.attrib["width"]), float(root.attrib["height"])
        assert {element.tag.removeprefix(SPACE) for element in root.iter()} <= TAGS
        for element in root.iter():
            for name, value in element.attrib.items():
                assert not name.startswith("on"), name
                assert "href" not in name
                self._check(name, value)
        style = next(element.text or "" for element in root.iter(f"{SPACE}style"))
        assert "url(" not in style
        assert "@import" not in style

    def _check(self, name: str, value: str) -> None:
        if name in ("x", "y", "width", "height", "rx", "stroke-width"):
            assert NUMBER.fullmatch(value), (name, value)
            if name in ("x", "y"):
                assert -20 <= float(value) <= max(self.width, self.height) + 20, (name, value)
        if name == "d":
            words = re.findall(r"[A-Za-z]+|-?[0-9.]+", value)
            assert all(word in set("MLCQAZ") or NUMBER.fullmatch(word) for word in words), value

    @property
    def texts(self) -> list[str]:
        """What is written in the picture, from first to last."""
        return [element.text or "" for element in self.elements if element.tag == f"{SPACE}text"]

    @property
    def tips(self) -> list[str]:
        """What shows where somebody points at something."""
        return [element.text or "" for element in self.elements if element.tag == f"{SPACE}title"][1:]

    def count(self, tag: str) -> Counter[str]:
        """How many elements of a kind there are in each style."""
        found = (element.attrib["class"] for element in self.elements if element.tag == f"{SPACE}{tag}")
        return Counter(found)


@pytest.fixture(scope="session")
def see() -> Callable[[str], Seen]:
    return Seen
