"""Draw the gallery: `python tools/make_gallery.py` writes docs/gallery.md and the pictures in docs/gallery/.

Each preset is built for a small model on a small cluster, its plan is drawn, and it trains some steps on that cluster's
testbed, whose timeline is drawn too. (With stages there is no timeline: the plan shows the passes.) Each section links
to the preset's rule in docs/presets.md.

`--only NAME` draws only this preset, and may be given several times. `--page` writes only the page and measures
nothing. If presets cannot be run, they are named on stderr, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autosync import jsonio
from autosync.errors import AutosyncError, DoesNotApplyError
from autosync.pictures.plan_picture import plan_picture
from autosync.pictures.timeline_picture import timeline_picture
from autosync.pictures.trace_file import choose_steps, read_trace
from autosync.plan.bundling import bundled
from autosync.plan.lowering import lower
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import Bundle
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.presets.pipelines import PIPELINES

ROOT = Path(__file__).resolve().parents[1]
MATERIAL = ROOT / "tools" / "gallery"
PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "gallery"
PRESETS_PAGE = ROOT / "docs" / "presets.md"

NUM_WARMUP = 4
NUM_STEPS = 13
NUM_SHOWN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The example of a preset: a model of ours or a shipped one, a shipped cluster, and options that suit it."""

    model: str = "convnet"
    cluster: str = "4-hosts"
    options: Mapping[str, Any] = field(default_factory=dict)


# Presets that are not listed are shown in the first case of ANYWHERE to which they apply.
CASES: Mapping[str, Case] = {
    "ddp_cap": Case(options={"cap_bytes": "1 MB"}),
    "hierarchical": Case(cluster="4-hosts-2-ranks", options={"cap_bytes": "1 MB"}),
    "rack_levels": Case(cluster="4-hosts-2-racks", options={"cap_bytes": "1 MB"}),
    "sharded": Case(options={"cap_bytes": "1 MB"}),
    "ps": Case(cluster="4-hosts-2-servers"),
    "ps_load_balanced": Case(cluster="4-hosts-2-servers"),
    "byteps": Case(cluster="4-hosts-2-servers", options={"partition_bytes": "256 kB", "num_lanes": 4}),
    "p3": Case(options={"num_lanes": 4}),
    "bytescheduler": Case(options={"slice_bytes": "256 kB"}),
    "parallax": Case(model="recommender"),
    "uneven_batches": Case(cluster="4-hosts-uneven"),
    "gpipe": Case(model="language_model", options={"microbatches": 8}),
    "interleaved_1f1b": Case(model="language_model", options={"microbatches": 8}),
    # Its weights are used in one stage each.
    "pipedream": Case(model="acoustic_mlp", options={"microbatches": 8}),
    "pipedream_2bw": Case(model="language_model"),
    "pipedream_flush": Case(model="language_model"),
    "diloco": Case(options={"every": 4}),
    "all_reduce_chunks": Case(options={"chunk_size": 4}),
    "partitioned_all_reduce": Case(options={"chunk_size": 3}),
    "random_axis_partitioned_all_reduce": Case(options={"chunk_size": 3}),
}
ANYWHERE = (
    Case(),
    Case(cluster="4-hosts-2-servers"),
    Case(cluster="4-hosts-2-ranks"),
    Case(model="recommender"),
    Case(model="recommender", cluster="4-hosts-2-servers"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A preset with the case in which it is shown."""

    preset: str
    case: Case
    bundle: Bundle


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=preset_names(), action="append", help="this preset (more than once: these)")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    arguments = parser.parse_args()
    jsonio.write_text(PAGE, page())
    if arguments.page:
        return 0
    PICTURES.mkdir(exist_ok=True)
    shown = [show(name) for name in arguments.only or preset_names()]
    for one in shown:
        jsonio.write_text(PICTURES / f"{one.preset}-plan.svg", plan_of(one))
    failures = dict(measured([one for one in shown if "timeline" in pictures_of(one.preset)]))
    for stray in {path.name for path in PICTURES.iterdir()} - set(picture_names()):
        (PICTURES / stray).unlink()
    for name, why in failures.items():
        print(f"{name}: {why}", file=sys.stderr)
    return 1 if failures else 0


def picture_names() -> list[str]:
    """Return the files in the folder of pictures."""
    return [f"{name}-{what}.svg" for name in preset_names() for what in pictures_of(name)]


def pictures_of(preset: str) -> tuple[str, ...]:
    """Return the pictures that a preset has."""
    return ("plan",) if preset in PIPELINES else ("plan", "timeline")


# Pictures.


def show(preset: str) -> Shown:
    """Return a preset built for its case."""
    cases = (CASES[preset],) if preset in CASES else ANYWHERE
    refusal: DoesNotApplyError | None = None
    for case in cases:
        model, cluster = model_of(case), load_cluster(case.cluster)
        try:
            strategy = build_preset(preset, model, cluster, **case.options)
        except DoesNotApplyError as error:
            refusal = error
            continue
        return Shown(preset=preset, case=case, bundle=bundled(strategy, model, cluster))
    assert refusal is not None, "no case is tried"
    raise refusal


def model_of(case: Case) -> ModelSpec:
    """Return the model of a case."""
    own = MATERIAL / f"{case.model}.yaml"
    return load_model(str(own) if own.exists() else case.model)


def plan_of(shown: Shown) -> str:
    """Return the picture of a plan."""
    bundle = shown.bundle
    plan = lower(bundle.strategy, bundle.model, bundle.cluster)
    title, subtitle = bundle.strategy.name, f"{shown.case.model} on {shown.case.cluster}"
    return plan_picture(plan, bundle.cluster, title=title, subtitle=subtitle)


def measured(shown: Sequence[Shown]) -> Iterator[tuple[str, str]]:
    """Train with each preset for some steps and draw its timeline; which could not be run, and why."""
    by_place: dict[tuple[str, str], list[Shown]] = {}
    for one in shown:
        by_place.setdefault((one.case.model, one.case.cluster), []).append(one)
    for (model, cluster), members in by_place.items():
        print(f"{model} on {cluster}: {', '.join(one.preset for one in members)}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="gallery-") as folder:
            yield from _measured_together(members, load_cluster(cluster), Path(folder))


def _measured_together(members: Sequence[Shown], cluster: ClusterSpec, folder: Path) -> Iterator[tuple[str, str]]:
    # Ranks need torch; whoever writes the page alone does not wait for it.
    from autosync.runtime.engine.trace import trace_path
    from autosync.trials.service import Contestant, TrialService

    model = members[0].bundle.model
    with TrialService(target=model.name, model=model, cluster=cluster, folder=folder) as service:
        for one in members:
            trace = folder / f"{one.preset}.json"
            try:
                service.prepare(Contestant(name=one.preset, bundle=one.bundle, trace=trace))
                service.run(one.preset, NUM_WARMUP)
                service.run(one.preset, NUM_STEPS)
                service.release(one.preset)
                (rank,) = read_trace(trace_path(trace, 0))
                steps = choose_steps(rank, NUM_SHOWN)
            except AutosyncError as error:
                yield one.preset, str(error)
                continue
            subtitle = f"{one.case.model} on {one.case.cluster}, {rank.name}, measured"
            text = timeline_picture([rank], steps, title=one.bundle.strategy.name, subtitle=subtitle)
            jsonio.write_text(PICTURES / f"{one.preset}-timeline.svg", text)


# The page.


def page() -> str:
    """Return the content of docs/gallery.md."""
    anchors = anchors_of(PRESETS_PAGE.read_text(encoding="utf-8"))
    sections = [_section(show(name), anchors[name]) for name in preset_names()]
    return "\n".join([(MATERIAL / "introduction.md").read_text(encoding="utf-8"), *sections])


def anchors_of(text: str) -> Mapping[str, str]:
    """Return the anchor of each preset's section in docs/presets.md. A section may describe several presets."""
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    anchors = {
        name: re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
        for name in re.findall(r"\w+", heading)
    }
    missing = sorted(set(preset_names()) - anchors.keys())
    if missing:
        raise SystemExit(f"docs/presets.md has no section for {', '.join(missing)}")
    return anchors


def _section(shown: Shown, anchor: str) -> str:
    name = shown.preset
    pictures = "\n\n".join(f"![{what.title()}](gallery/{name}-{what}.svg)" for what in pictures_of(name))
    return f"""\
## {name}
[Its rule](presets.md#{anchor})

{pictures}
"""


if __name__ == "__main__":
    sys.exit(main())
