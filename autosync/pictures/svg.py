"""A small writer of SVG: rectangles, lines, paths and texts, each with a style of the style sheet.

The same drawing always gives the same text, and numbers have at most one decimal, so a picture in a repository changes
only where its drawing does. Names come from users, so all text is escaped, and characters that XML cannot hold are
replaced. The output has no scripts, no links and no fonts to load.
"""

from __future__ import annotations

import html
import math
import re
from typing import Literal

from autosync.pictures.theme import stylesheet

Anchor = Literal["start", "middle", "end"]

# Characters that XML 1.0 cannot hold, not even escaped.
_UNSPEAKABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def number(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    assert math.isfinite(value), "coordinates are finite"
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def escaped(text: str) -> str:
    """Return a text for an element or an attribute, on one line."""
    return html.escape(_UNSPEAKABLE.sub("\ufffd", " ".join(text.split())), quote=True)


class Pen:
    """The commands of a path, one after the other."""

    def __init__(self) -> None:
        self._commands: list[str] = []

    def move(self, x: float, y: float) -> Pen:
        return self._add("M", x, y)

    def line(self, x: float, y: float) -> Pen:
        return self._add("L", x, y)

    def curve(self, start: tuple[float, float], end: tuple[float, float], x: float, y: float) -> Pen:
        """Add a cubic curve to a point; `start` and `end` are its control points."""
        return self._add("C", *start, *end, x, y)

    def bend(self, control: tuple[float, float], x: float, y: float) -> Pen:
        """Add a quadratic curve to a point."""
        return self._add("Q", *control, x, y)

    def arc(self, radius_x: float, radius_y: float, x: float, y: float) -> Pen:
        """Add an elliptic arc to a point, clockwise, at most half of the ellipse."""
        self._commands.append(f"A{number(radius_x)} {number(radius_y)} 0 0 1 {number(x)} {number(y)}")
        return self

    def chevron(self, x: float, y: float, toward: tuple[float, float], size: float = 3.0) -> Pen:
        """Add an arrowhead whose tip is at the point."""
        length = math.hypot(*toward) or 1.0
        dx, dy = toward[0] / length * size, toward[1] / length * size
        self.move(x - dx - dy, y - dy + dx)
        self.line(x, y)
        return self.line(x - dx + dy, y - dy - dx)

    def close(self) -> Pen:
        return self._add("Z")

    def _add(self, command: str, *numbers: float) -> Pen:
        self._commands.append(command + " ".join(map(number, numbers)))
        return self

    @property
    def is_empty(self) -> bool:
        return not self._commands

    def __str__(self) -> str:
        """Return the path's data."""
        return "".join(self._commands)


class Drawing:
    """Elements in the order in which they are drawn. `style` names classes of the style sheet."""

    def __init__(self) -> None:
        self._ground: list[str] = []
        self._elements: list[str] = []

    def rectangle(
        self,
        corner: tuple[float, float],
        size: tuple[float, float],
        style: str,
        *,
        radius: float = 0.0,
        tip: str = "",
    ) -> None:
        """Draw a rectangle by its upper left corner; `tip` appears when the mouse points at it."""
        (x, y), (width, height) = corner, size
        round_corners = f' rx="{number(radius)}"' if radius else ""
        place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        self._add(
            "rect", f'class="{escaped(style)}" {place}{round_corners}', f"<title>{escaped(tip)}</title>" * bool(tip)
        )

    def line(self, start: tuple[float, float], end: tuple[float, float], style: str) -> None:
        """Draw a straight line."""
        self.path(Pen().move(*start).line(*end), style)

    def underlay(self, start: tuple[float, float], end: tuple[float, float], style: str) -> None:
        """Draw a straight line under everything else."""
        pen = Pen().move(*start).line(*end)
        self._ground.append(f'<path class="{escaped(style)}" d="{pen}"/>')

    def path(self, pen: Pen, style: str, *, width: float | None = None) -> None:
        """Draw the path of a pen; an empty path draws nothing."""
        if not pen.is_empty:
            stroke = "" if width is None else f' stroke-width="{number(width)}"'
            self._add("path", f'class="{escaped(style)}" d="{pen}"{stroke}')

    def text(self, x: float, y: float, words: str, style: str, *, anchor: Anchor = "start") -> None:
        """Draw a line of text on its base line."""
        if words:
            place = f'x="{number(x)}" y="{number(y)}"'
            aligned = "" if anchor == "start" else f' text-anchor="{anchor}"'
            self._add("text", f'class="{escaped(style)}" {place}{aligned}', escaped(words))

    def _add(self, tag: str, attributes: str, content: str = "") -> None:
        self._elements.append(f"<{tag} {attributes}>{content}</{tag}>" if content else f"<{tag} {attributes}/>")

    def svg(self, width: float, height: float, *, title: str, description: str) -> str:
        """Return the whole document. Screen readers read the title and the description."""
        size = f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
            f'<title id="title">{escaped(title)}</title>',
            f'<desc id="desc">{escaped(description)}</desc>',
            f"<style>{stylesheet()}</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{number(width - 1)}" height="{number(height - 1)}" rx="8"/>',
            *self._ground,
            *self._elements,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"
