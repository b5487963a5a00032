"""Write the picture in the README, after a demo: `python tools/demo_picture.py build/demo/autosync-studies/demo`."""

from __future__ import annotations

import sys
from pathlib import Path

from autosync import jsonio
from autosync.report.study_report import read_study_report
from autosync.report.timelines import timelines_picture
from autosync.search.study_folder import StudyFolder

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "demo-timelines.svg"

if __name__ == "__main__":
    found = timelines_picture(read_study_report(StudyFolder(Path(sys.argv[1])), records=[]))
    assert found is not None, "the study has its timelines or its bundle"
    jsonio.write_text(PICTURE, found.svg)
    print(found.caption)
