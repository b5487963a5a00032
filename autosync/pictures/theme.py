"""The look of pictures: one style sheet for light and dark pages.

Each message has its own colour if there are few of them; the classes `line-0` and `fill-0` have the first colour. A
picture has its own background, so it is readable on any page, and it follows the reader's colour preference.
"""

from __future__ import annotations

from collections.abc import Mapping

NUM_COLOURS = 8
"""The number of messages that can have their own colours."""
OTHERS = NUM_COLOURS
"""The colour of all messages without their own."""

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"

_LIGHT_COLOURS = ("2f6fd0", "b8600b", "1f7a4d", "7d4fc4", "bf3349", "13788a", "7a6c00", "b0438c", "6e7781")
_DARK_COLOURS = ("6ca4f0", "f0a04b", "4fc38a", "b794f0", "f0758a", "4cc0d4", "d0bf3c", "e98fc9", "8b949e")

_COMMON = (
    f"text{{font-family:{FONT};font-size:12px}}"
    ".head{font-size:17px;font-weight:600}.bold{font-weight:600}.small{font-size:11px}.tiny{font-size:10px}"
    ".line,.thin,.dashed{fill:none;stroke-width:1}.dashed{stroke-dasharray:4 3}"
    ".own{fill-opacity:.38}.bare{fill:none}"
)

# For each class: declarations with a placeholder for the colour, the colour on light pages, and that on dark ones.
_COLOURED: Mapping[str, tuple[str, str, str]] = {
    "page": ("fill:{};stroke:#8b949e;stroke-opacity:.35", "ffffff", "0d1117"),
    "ink": ("fill:{}", "1f2328", "e6edf3"),
    "soft": ("fill:{}", "59636e", "9198a1"),
    "on": ("fill:{}", "ffffff", "0d1117"),
    "line": ("stroke:{}", "59636e", "9198a1"),
    "thin": ("stroke:{}", "d8dee4", "30363d"),
    "dashed": ("stroke:{}", "8b949e", "6e7681"),
    "box": ("fill:{};stroke:#8b949e;stroke-width:1", "f6f8fa", "161b22"),
    "serves": ("fill:{};stroke:#b8600b;stroke-width:1.3;stroke-dasharray:5 3", "fff6ea", "2a1f12"),
    "frame": ("fill:none;stroke:{};stroke-width:.8", "afb8c1", "484f58"),
    "held": ("fill:none;stroke:{};stroke-width:1.6", "1f2328", "e6edf3"),
    "cut": ("fill:none;stroke:{};stroke-width:1.6", "ffffff", "0d1117"),
    "station": ("fill:{};stroke:#59636e;stroke-width:1.2", "ffffff", "0d1117"),
    "meter": ("fill:{}", "8c959f", "6e7681"),
    "forward": ("fill:{}", "a9bccf", "44586c"),
    "backward": ("fill:{}", "7d97b0", "5f7a93"),
    "optimizer": ("fill:{}", "c9b58f", "7d6a45"),
    "wait": ("fill:{};stroke:#bf3349;stroke-width:1;stroke-dasharray:3 2", "fdecee", "3a161c"),
}


def stylesheet() -> str:
    """Return the style sheet that every picture contains."""
    return f"{_COMMON}{_rules(dark=False)}@media(prefers-color-scheme:dark){{{_rules(dark=True)}}}"


def _rules(*, dark: bool) -> str:
    named = (
        f".{name}{{{rule.format(f'#{on_dark if dark else light}')}}}"
        for name, (rule, light, on_dark) in _COLOURED.items()
    )
    colours = _DARK_COLOURS if dark else _LIGHT_COLOURS
    numbered = (f".line-{i}{{fill:none;stroke:#{c}}}.fill-{i}{{fill:#{c}}}" for i, c in enumerate(colours))
    return "".join([*named, *numbered])
