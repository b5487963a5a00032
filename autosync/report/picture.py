"""A picture in a page: an SVG as an image, with buttons that enlarge it."""

from __future__ import annotations

import base64

from autosync.report.markup import Markup, element

MAX_PICTURE_BYTES = 400_000
"""The size of a picture above which the page leaves it out."""

_ZOOMS = (("larger", "2"), ("smaller", "0.5"))


def picture(svg: str, caption: str) -> Markup:
    """Return a figure with a picture as an image, in which nothing can run or be loaded."""
    if len(svg) > MAX_PICTURE_BYTES:
        return element(
            "p", f"{caption} The picture is too large for this page; `autosync draw` makes it.", class_="soft"
        )
    data = base64.b64encode(svg.encode()).decode()
    image = element("img", src=f"data:image/svg+xml;base64,{data}", alt=caption)
    inside = element("section", image, class_="picture", tabindex=0, aria_label=caption)
    buttons = [element("button", words, type="button", class_="zoom", data_zoom=by) for words, by in _ZOOMS]
    return element("figure", inside, element("p", buttons), element("figcaption", caption))
