"""Pictures: a step of stock DDP above one of the winner, and the winner's plan."""

from __future__ import annotations

from autosync.pictures.plan_picture import plan_picture
from autosync.plan.lowering import lower
from autosync.report.markup import Markup, element, joined
from autosync.report.picture import picture
from autosync.report.study_report import StudyReport
from autosync.report.timelines import timelines_picture


def pictures_section(report: StudyReport) -> Markup:
    """Return the pictures of a study."""
    timelines, bundle = timelines_picture(report), report.bundle
    shown = [picture(timelines.svg, timelines.caption)] if timelines is not None else []
    if bundle is None:
        return joined(shown, element("p", "The winner's bundle is not in the study's folder.", class_="soft"))
    name, where = report.summary.winner.name, f"{bundle.model.name} on {bundle.cluster.name}"
    plan = lower(bundle.strategy, bundle.model, bundle.cluster)
    drawn = plan_picture(plan, bundle.cluster, title=name, subtitle=where)
    what = "the passes of each rank in a step" if plan.stages else "who sends what to whom in a step"
    shown.append(picture(drawn, f"The plan of {name}, {where}: {what}."))
    return joined(shown)
