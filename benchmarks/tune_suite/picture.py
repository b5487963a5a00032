"""The curves of `tune_suite.py`: for each target the best so far after each trial, by proposer, with its range."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autosync.pictures.svg import Drawing, Pen

WIDTH, HEIGHT = 760.0, 380.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 150.0, 66.0, 44.0
MOST = 2.0
"""The multiple of the best above which curves are cut off."""

TICKS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)


def write_pictures(document: Mapping[str, Any], folder: Path) -> None:
    """Write a picture for each target."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in document["targets"].items():
        path = folder / (re.sub(r"[^A-Za-z0-9._-]+", "-", name) + ".svg")
        path.write_text(picture(name, target), encoding="utf-8")


def picture(name: str, target: Mapping[str, Any]) -> str:
    """Return the picture as SVG."""
    curves = {proposer: figures["curve"] for proposer, figures in target["proposers"].items()}
    num_trials = max(len(curve["median"]) for curve in curves.values())
    drawing = Drawing()
    drawing.text(20, 30, name, "head ink")
    drawing.text(20, 48, "the fastest strategy so far, as a multiple of the best known; median and range", "soft")
    for ratio in TICKS:
        y = _y(ratio)
        drawing.underlay((LEFT, y), (WIDTH - RIGHT, y), "dashed" if ratio == 1.02 else "thin")
        drawing.text(LEFT - 8, y + 4, f"{ratio:g}", "small soft", anchor="end")
    for trial in range(0, num_trials + 1, 10):
        x = _x(max(trial, 1), num_trials)
        drawing.text(x, HEIGHT - BOTTOM + 16, str(max(trial, 1)), "small soft", anchor="middle")
    drawing.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "trials", "small soft", anchor="middle")
    for number, (proposer, curve) in enumerate(curves.items()):
        _draw(drawing, number, curve, num_trials)
        y = TOP + 18 * number
        drawing.line((WIDTH - RIGHT + 14, y), (WIDTH - RIGHT + 34, y), f"line-{number}")
        drawing.text(WIDTH - RIGHT + 40, y + 4, proposer, "small ink")
    best = f"the best known takes {target['best_known_seconds'] * 1e3:.1f} ms a step"
    return drawing.svg(WIDTH, HEIGHT, title=name, description=f"Curves of {', '.join(curves)}; {best}.")


def _draw(drawing: Drawing, number: int, curve: Mapping[str, Sequence[float]], num_trials: int) -> None:
    points = range(len(curve["median"]))
    band = Pen()
    for trial in points:
        _to(band, trial == 0, _x(trial + 1, num_trials), _y(curve["high"][trial]))
    for trial in reversed(points):
        band.line(_x(trial + 1, num_trials), _y(curve["low"][trial]))
    drawing.path(band.close(), f"fill-{number} own")
    line = Pen()
    for trial in points:
        _to(line, trial == 0, _x(trial + 1, num_trials), _y(curve["median"][trial]))
    drawing.path(line, f"line-{number}", width=2.0)


def _to(pen: Pen, is_first: bool, x: float, y: float) -> None:  # noqa: FBT001 - the first point of a path
    if is_first:
        pen.move(x, y)
    else:
        pen.line(x, y)


def _x(trial: int, num_trials: int) -> float:
    return LEFT + (trial - 1) / max(num_trials - 1, 1) * (WIDTH - LEFT - RIGHT)


def _y(ratio: float) -> float:
    """Return a position on a logarithmic axis of the distance to the best, which separates the curves near it."""
    low, high = math.log(0.01), math.log(MOST - 1 + 0.01)
    share = (math.log(min(max(ratio, 1.0), MOST) - 1 + 0.01) - low) / (high - low)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
