"""The pictures of a report: the simulated timelines of stock DDP and of the winner, and the winner's plan."""

from __future__ import annotations

import base64

from autosync.pictures.plan_picture import plan_picture
from autosync.pictures.timeline_picture import timeline_picture
from autosync.pictures.trace_file import choose_steps, ranks_of
from autosync.plan.lowering import lower
from autosync.report.markup import Markup, element, joined
from autosync.report.study_report import StudyReport
from autosync.search.candidates import default_as_strategy
from autosync.simulators.timeline.simulator import MOST_RANKS, TimelineSimulator
from autosync.strategy.bundle import Bundle
from autosync.strategy.representation import Strategy

MAX_PICTURE_BYTES = 400_000
"""The size of a picture above which the page leaves it out."""
LARGE = 20_000
"""No timeline is simulated if the product of variables and ranks is larger, because it would take too long."""


def pictures_section(report: StudyReport) -> Markup:
    """Return the pictures of a study."""
    bundle, winner = report.bundle, report.summary.winner
    if bundle is None:
        return element("p", "The winner's bundle is not in the study's folder.", class_="soft")
    shown = []
    stock = default_as_strategy(bundle.model, bundle.cluster).strategy
    if stock is not None and not _is_large(bundle):
        shown.append(_timeline(bundle, stock, "stock DDP"))
        if winner.beats_stock_ddp:
            shown.append(_timeline(bundle, bundle.strategy, winner.name))
    what = "who sends what to whom in a step"
    plan = lower(bundle.strategy, bundle.model, bundle.cluster)
    title = f"{winner.name}, {bundle.model.name} on {bundle.cluster.name}"
    drawn = plan_picture(
        plan, bundle.cluster, title=winner.name, subtitle=f"{bundle.model.name} on {bundle.cluster.name}"
    )
    shown.append(_picture(drawn, f"The plan of {title}: {what}."))
    return joined(shown)


def _is_large(bundle: Bundle) -> bool:
    num_ranks = len(bundle.cluster.ranks)
    return num_ranks > MOST_RANKS or num_ranks * len(bundle.model.variables) > LARGE


def _timeline(bundle: Bundle, strategy: Strategy, name: str) -> Markup:
    """Return the picture of a step on the first worker, as the timeline simulator plays it."""
    ranks = ranks_of(TimelineSimulator(bundle.model, bundle.cluster).trace(strategy))
    steps = choose_steps(ranks[0], 1)
    num_workers = bundle.cluster.num_workers
    subtitle = f"simulated; {ranks[0].name}, one of {num_workers} workers"
    drawn = timeline_picture(ranks[:1], steps, title=name, subtitle=subtitle)
    return _picture(
        drawn, f"A step of {name} on the first of {num_workers} workers, as the timeline simulator plays it."
    )


def _picture(svg: str, caption: str) -> Markup:
    """Return a figure with the picture as an image, which can neither run nor load anything."""
    if len(svg) > MAX_PICTURE_BYTES:
        return element(
            "p", f"{caption} The picture is too large for this page; `autosync draw` makes it.", class_="soft"
        )
    data = base64.b64encode(svg.encode()).decode()
    image = element("img", src=f"data:image/svg+xml;base64,{data}", alt=caption)
    inside = element("section", image, class_="picture", tabindex=0, aria_label=caption)
    button = element("button", "larger", type="button", class_="zoom", aria_pressed="false")
    return element("figure", inside, button, element("figcaption", caption))
