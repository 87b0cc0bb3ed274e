"""No report is forgotten: each is tested here, or waits in a list that says for what.

`tests/data/faults.json` is the index of all reports, and `tests/data/faults_waiting_*.json` are the lists.  A report may be in both, if
its entry begins with "in part: ".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA = HERE.parent / "data"
TESTED_KINDS = {"NUM", "SEED", "STOP", "UTF8", "VALID", "LP", "PEN", "NEIGH", "TRUNC", "IDS", "IMPOS", "ORDER"}
LATER_KINDS = {"SPEC": "speculation", "STATE": "speculation", "DRAFT": "speculation", "OVERCON": "grammar", "DOS": "server|grammar|step 5"}
IN_PART = "in part: "


def read(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


REPORTS = {report["id"]: report for report in read("faults.json")}
LISTS = {path.name: read(path.name) for path in sorted(DATA.glob("faults_waiting_*.json"))}
WAITING = {id: reason for each in LISTS.values() for id, reason in each.items()}
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in sorted(HERE.glob("test_*.py")) if path != Path(__file__)}
TESTED = {f"B{number}": name for name, source in SOURCES.items() for number in re.findall(r"\b[Bb](\d{3})(?!\d)", source)}
# A number within a function's name, `test_b029_…`, is a test's id as well.
TESTED |= {f"B{number}": name for name, source in SOURCES.items() for number in re.findall(r"def test_b(\d{3})_", source)}


def test_the_index_is_whole() -> None:
    """189 reports of 17 kinds, as the collection's head says."""
    assert len(REPORTS) == len(read("faults.json")) == 189
    assert {report["kind"] for report in REPORTS.values()} == TESTED_KINDS | set(LATER_KINDS)
    assert all(report["url"].startswith("http") and report["title"] for report in REPORTS.values())


def test_every_report_is_tested_or_waits() -> None:
    forgotten = [f"{id} {report['kind']}: {report['title']}" for id, report in REPORTS.items() if id not in TESTED and id not in WAITING]
    assert not forgotten, "\n".join(forgotten)


def test_no_report_is_both_without_saying_so() -> None:
    both = {id: (TESTED[id], reason) for id, reason in WAITING.items() if id in TESTED and not reason.startswith(IN_PART)}
    assert not both, "a tested report leaves the waiting list, or its entry begins with 'in part: '"
    assert not {id for id, reason in WAITING.items() if id not in TESTED and reason.startswith(IN_PART)}, "nothing tests the other part"


def test_every_waiting_report_says_what_it_waits_for() -> None:
    """One list each, known by the index; those of later kinds name the layer that is missing."""
    assert not [id for id, times in Counter(id for each in LISTS.values() for id in each).items() if times > 1]
    assert set(WAITING) <= set(REPORTS)
    assert all(len(reason.removeprefix(IN_PART)) > 5 for reason in WAITING.values())
    for id, report in REPORTS.items():
        if report["kind"] in LATER_KINDS:
            assert id in TESTED or re.search(LATER_KINDS[report["kind"]], WAITING[id]), id


def test_the_tests_name_no_report_that_is_not_there() -> None:
    assert set(TESTED) <= set(REPORTS)
