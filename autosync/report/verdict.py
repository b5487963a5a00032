"""The head of a study's report: the verdict in a sentence, and the main figures."""

from __future__ import annotations

from autosync.report.markup import Markup, element, items, joined
from autosync.report.study_report import StudyReport
from autosync.search.shown_summary import ShownRatio
from autosync.specs.background_load import BUSY_SHARE
from autosync.units import format_time


def verdict_section(report: StudyReport) -> Markup:
    """Return the section with the verdict: a sentence, figures, and doubts about them."""
    summary = report.summary
    is_faster = summary.winner.beats_stock_ddp
    what = element("p", verdict_sentence(report), class_="verdict faster" if is_faster else "verdict")
    return joined(
        what,
        element("p", f"{summary.winner.in_words[:1].upper()}{summary.winner.in_words[1:]}.") if is_faster else None,
        element("dl", [_figure(*one) for one in _figures(report)], class_="figures"),
        _left(report),
        _about_stages(report),
        _about_graphs(report),
        _about_input(report),
        items(doubts(report)),
    )


def verdict_sentence(report: StudyReport) -> str:
    """Return the verdict in one sentence."""
    summary, winner = report.summary, report.summary.winner
    if not winner.beats_stock_ddp:
        if len(summary.contests) == 1:
            return "Nothing was there to compare with stock DDP: keep it."
        return "Nothing tried is faster than stock DDP for certain: keep it."
    ratio = winner.speedup_over_stock_ddp
    assert ratio is not None, "the winner was compared with stock DDP"
    return f"{winner.name} takes {less_time(ratio)} than stock DDP (95 % sure: {_range(ratio)})."


def less_time(ratio: ShownRatio) -> str:
    """Return the saved share of a step's time in words: `27 % less time per step`."""
    return f"{_percent(1 - 1 / ratio.value)} less time per step"


def _range(ratio: ShownRatio) -> str:
    low, high = (_percent(1 - 1 / value) for value in (ratio.low, ratio.high))
    return low if low == high else f"{low} to {high} less"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %" if abs(share) < 0.1 else f"{share * 100:.0f} %"


def _figures(report: StudyReport) -> list[tuple[str, str, str]]:
    """Return the main figures: name, value, and the text below the value."""
    winner, default = report.winner, report.default
    ratio = report.summary.winner.speedup_over_stock_ddp
    found = []
    if ratio is not None and report.summary.winner.beats_stock_ddp:
        found.append(
            ("speed-up over stock DDP", f"{ratio.value:.2f} ×", f"95 % range {ratio.low:.2f} to {ratio.high:.2f}")
        )
    before, after = default.seconds.value, winner.seconds.value
    is_same = winner is default
    for name, old, new in (
        ("time of a step", format_time(before), format_time(after)),
        ("steps per second", f"{1 / before:.4g}", f"{1 / after:.4g}"),
    ):
        found.append((name, new, "" if is_same else f"stock DDP: {old}"))
    samples = report.num_samples
    if samples is not None:
        below = "" if is_same else f"stock DDP: {samples / before:.4g}"
        found.append(("samples per second", f"{samples / after:.4g}", below))
    return found


def _figure(name: str, value: str, below: str) -> Markup:
    shown = [value, element("small", below)] if below else [value]
    return element("div", element("dt", name), element("dd", shown))


def _left(report: StudyReport) -> Markup:
    """Return a paragraph on the gain that is still possible."""
    summary = report.summary
    if not summary.winner.beats_stock_ddp:
        words = summary.prospect.in_words
        return element("p", f"{words[:1].upper()}{words[1:]}.", class_="soft") if words else Markup()
    if summary.winner.headroom is None or not summary.winner.headroom.in_words:
        return Markup()
    return element("p", f"What is left: {summary.winner.headroom.in_words}.", class_="soft")


def _about_stages(report: StudyReport) -> Markup:
    """Return a paragraph on strategies with stages: their bound, or why they were not tried."""
    stages = report.summary.stages
    if stages is None or not stages.in_words:
        return Markup()
    words = f"The bound of a step: {stages.in_words}" if stages.searched else stages.in_words
    return element("p", f"{words[:1].upper()}{words[1:]}.", class_="soft")


def _about_graphs(report: StudyReport) -> Markup:
    """Return a paragraph on the batching and the dealing of graphs, for a model whose graph changes."""
    graphs = report.summary.graphs
    if graphs is None or not graphs.in_words:
        return Markup()
    return element("p", f"{graphs.in_words[:1].upper()}{graphs.in_words[1:]}.", class_="soft")


def _about_input(report: StudyReport) -> Markup:
    """Return a paragraph on the input settings, for a task with a dataset."""
    found = report.summary.loader
    if found is None or not found.in_words:
        return Markup()
    return element("p", f"Input: {found.in_words}.", class_="soft")


def doubts(report: StudyReport) -> list[str]:
    """Return the reasons to doubt the figures."""
    summary, found = report.summary, []
    share = summary.other_cpu_share
    if share is not None and share > BUSY_SHARE:
        found.append(
            f"Other programs used {share:.0%} of this machine's processors: the figures are of a busy machine."
        )
    if summary.profile is not None and summary.profile.in_words:
        found.append(f"{summary.profile.in_words}.")
    if summary.winner.training:
        found.append(f"Training with the winner: {summary.winner.training}.")
    found += [f"{name}: {one.in_words}." for name, one in summary.fidelity.items() if name != summary.winner.name]
    found += [f"{name} was left out of the proof: {reason}" for name, reason in summary.left_out.items()]
    return found
