"""The result of `convergence.py` for readers: a table in Markdown and a picture of the curves for each training."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autosync.pictures.lettering import text_width
from autosync.pictures.svg import Anchor, Drawing, Pen

PANELS = {
    "codec": "codecs, with error feedback where they take much away",
    "codec without error feedback": "the same without error feedback",
    "late": "late updates and rare averages",
}
EXACT = "exact"

WIDTH, HEIGHT = 960.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 250.0, 40.0, 36.0
HEAD = 34.0
SKIPPED = 1 / 25
"""The share of a curve that is left out, because the fall of the first steps would take all the height."""


def markdown(document: Mapping[str, Any]) -> str:
    """Return a table for each training."""
    return "\n".join(_table(name, result, document) for name, result in document["trainings"].items())


def _table(name: str, result: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    dense = result["contestants"][EXACT]["bytes_a_step"]
    size = f"{result['num_parameters']:,} parameters, {result['num_steps']} steps"
    clipped = result.get("clip_norm")
    setting = f"learning rate {result['learning_rate']:g}, momentum {result['momentum']:g}"
    setting += "" if clipped is None else f", clipped at {clipped:g}"
    lines = [
        f"**{name}** ({size}; {setting}; {document['num_ranks']} ranks, {document['num_seeds']} seeds)",
        "",
        "| trained by | bytes a step | final loss | beside exact | range over seeds | on new data, beside exact |",
        "|---|---|---|---|---|---|",
    ]
    for contestant, found in result["contestants"].items():
        sent = found["bytes_a_step"]
        share = "" if sent is None else f"{sent / dense:.1%}"
        if found["failures"]:
            lines.append(f"| {contestant} | {share} | {found['failures'][0]} | | | |")
            continue
        ratio, new = found["ratio"], found["evaluation_ratio"]
        spread = f"{ratio['low'] - 1:+.1%} … {ratio['high'] - 1:+.1%}"
        lines.append(
            f"| {contestant} | {share} | {found['final_loss']['mean']:.4f} | {ratio['mean'] - 1:+.1%} | "
            f"{'' if contestant == EXACT else spread} | {new['mean'] - 1:+.1%} |"
        )
    return "\n".join([*lines, ""])


def write_pictures(document: Mapping[str, Any], folder: Path) -> None:
    """Write the curves of each training."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, result in document["trainings"].items():
        stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        (folder / f"convergence-{stem}.svg").write_text(picture(name, result))


def picture(name: str, result: Mapping[str, Any]) -> str:
    """Return panels one below the other, each with the exact run's curve and those of one kind of contestants."""
    drawing = Drawing()
    curves = {
        contestant: [(int(step), float(loss)) for step, loss in found["curve"]]
        for contestant, found in result["contestants"].items()
        if not found["failures"]
    }
    kinds = {contestant: found["kind"] for contestant, found in result["contestants"].items()}
    shown = [kind for kind in PANELS if any(kinds[contestant] == kind for contestant in curves)]
    title = f"{name}: loss by step"
    drawing.text(LEFT, 24, title, "ink head")
    for number, kind in enumerate(shown):
        chosen = {one: curves[one] for one in curves if one == EXACT or kinds[one] == kind}
        _panel(drawing, HEAD + number * HEIGHT, PANELS[kind], chosen, result["num_steps"])
    words = f"Curves of the training loss, mean over all seeds, of {', '.join(curves)}."
    return drawing.svg(WIDTH, HEAD + len(shown) * HEIGHT, title=title, description=words)


class Scale(NamedTuple):
    """The scale from steps and losses to positions; losses are on a logarithmic scale."""

    top: float
    num_steps: int
    least: float
    most: float

    def x(self, step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.num_steps

    def y(self, loss: float) -> float:
        share = math.log(loss / self.least) / math.log(self.most / self.least)
        return self.top + TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(share, 0.0), 1.0))


Curve = Sequence[tuple[int, float]]


def _panel(drawing: Drawing, top: float, words: str, curves: Mapping[str, Curve], num_steps: int) -> None:
    kept = {name: [point for point in curve if point[0] > SKIPPED * num_steps] for name, curve in curves.items()}
    exact = [loss for _, loss in kept[EXACT]]
    # A curve that leaves the picture at the top is far above exact training.
    most = min(max(loss for curve in kept.values() for _, loss in curve), 1.15 * max(exact))
    least = min(loss for curve in kept.values() for _, loss in curve)
    scale = Scale(top, num_steps, least * 0.98, most * 1.02)
    drawing.text(LEFT, top + 26, words, "ink bold")
    for tick in _ticks(scale.least, scale.most):
        drawing.underlay((LEFT, scale.y(tick)), (WIDTH - RIGHT, scale.y(tick)), "thin")
        drawing.text(LEFT - 8, scale.y(tick) + 4, f"{tick:g}", "soft small", anchor="end")
    bottom = top + HEIGHT - BOTTOM
    anchors: tuple[Anchor, ...] = ("start", "middle", "middle", "middle", "end")
    for quarter, anchor in enumerate(anchors):
        step = num_steps * quarter // 4
        mark = f"{step} steps" if quarter == 4 else f"{step}"
        drawing.text(scale.x(step), bottom + 16, mark, "soft small", anchor=anchor)
    others = [name for name in kept if name != EXACT]
    for number, name in enumerate(others):
        drawing.path(_line(scale, kept[name]), f"line-{number}", width=1.6)
    drawing.path(_line(scale, kept[EXACT]), "held")
    for name, place in _label_places(scale, kept).items():
        label = f"{name} {kept[name][-1][1]:.3f}"
        fill = "ink" if name == EXACT else f"fill-{others.index(name)}"
        assert text_width(label) < RIGHT, "labels fit beside the curves"
        drawing.text(WIDTH - RIGHT + 10, place + 4, label, fill)


def _line(scale: Scale, curve: Curve) -> Pen:
    pen = Pen()
    for number, (step, loss) in enumerate(curve):
        (pen.line if number else pen.move)(scale.x(step), scale.y(loss))
    return pen


def _label_places(scale: Scale, curves: Mapping[str, Curve], height: float = 16.0) -> dict[str, float]:
    """Return the positions of labels beside the curves' ends, in their order and at least a line apart."""
    ends = sorted(curves, key=lambda name: -curves[name][-1][1])
    places: dict[str, float] = {}
    lowest = scale.top + TOP
    for name in ends:
        lowest = places[name] = max(scale.y(curves[name][-1][1]), lowest)
        lowest += height
    # Labels that would be below the bottom move the others up.
    limit = scale.top + HEIGHT - BOTTOM
    for name in reversed(ends):
        places[name] = min(places[name], limit)
        limit = places[name] - height
    return places


def _ticks(least: float, most: float) -> list[float]:
    """Return four to eight round numbers between the two."""
    for size in (5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002):
        found = [round(size * k, 3) for k in range(math.ceil(least / size), math.floor(most / size) + 1)]
        if len(found) >= 4:
            return found[:: -(-len(found) // 8)]
    return [round(least, 3), round(most, 3)]
