"""Pictures of schedules: well-formed, a box for each cell, and the docs' picture is what the command draws."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from autosync.cli import main
from autosync.loops.affine import Affine
from autosync.loops.schedule_picture import MAX_RANKS, MAX_STEPS, schedule_picture
from autosync.loops.schedules import LoopSchedule, rotation_cells, single_cells, wavefront_cells

ROOT = Path(__file__).parents[2]
_SVG = "{http://www.w3.org/2000/svg}"


def _boxes(text: str) -> list[ET.Element]:
    return [one for one in ET.fromstring(text).iter(f"{_SVG}rect") if one.get("class") != "page"]


@pytest.mark.parametrize("num_ranks", [2, 5])
def test_each_cell_has_a_box(num_ranks: int) -> None:
    for cells in (rotation_cells(num_ranks, 2 * num_ranks), wavefront_cells(num_ranks, num_ranks)):
        schedule = LoopSchedule(
            kind="two_dimensions",
            num_ranks=num_ranks,
            stay=Affine.field("user"),
            rotate=Affine.field("<item>"),
            rotate_cuts=tuple(range(max(cell.rotating for cell in cells))),
            cells=cells,
            reason="a reason",
        )
        assert len(_boxes(schedule_picture(schedule, title="a & b"))) == len(cells)


def test_a_single_step_and_a_large_schedule() -> None:
    one = LoopSchedule(kind="independent", num_ranks=3, cells=single_cells(3), reason="none")
    assert len(_boxes(schedule_picture(one, title="one"))) == 3
    large = LoopSchedule(
        kind="two_dimensions",
        num_ranks=40,
        rotate=Affine.field("item"),
        rotate_cuts=tuple(range(79)),
        cells=rotation_cells(40, 80),
        reason="none",
    )
    assert len(_boxes(schedule_picture(large, title="large"))) == MAX_RANKS * MAX_STEPS


def test_the_docs_have_the_picture_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "rotation.svg"
    target = str(ROOT / "examples/loops/matrix_factorisation.py")
    assert main.run(["loop", "analyse", target, "--workers", "2", "--picture", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == (ROOT / "docs/pictures/rotation.svg").read_text(encoding="utf-8")
    assert main.run(["loop", "analyse", target, "--workers", "2", "--picture", str(path)]) == 2
