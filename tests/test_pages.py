"""Generated pages and pictures are up to date, links lead somewhere, and what a page quotes is what the source says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from nalar import Chain
from test_keys import GOLDEN

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    pictures: dict[str, str] = script("pictures")["pictures"]()
    return pictures


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / f"{name}.py"))


def test_the_order_page_is_chain_order() -> None:
    written = (DOCS / "order.md").read_text(encoding="utf-8")
    assert written == script("order_page")["page"](), "run `make docs`"
    assert re.findall(r"^\| \d+ \| `(\w+)`", written, re.MULTILINE) == list(Chain.ORDER)


def test_the_pictures_are_what_the_stages_do(drawn: dict[str, str]) -> None:
    assert {path.name for path in (DOCS / "pictures").iterdir()} == set(drawn)
    for name, picture in drawn.items():
        assert (DOCS / "pictures" / name).read_text(encoding="utf-8") == picture, f"{name} is old: run `make docs`"


def test_every_picture_is_shown_with_a_description(drawn: dict[str, str]) -> None:
    shown = {
        Path(target).name: words
        for page in PAGES
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert set(shown) == set(drawn)
    assert all(len(words.split()) > 4 for words in shown.values())


def test_no_text_of_a_picture_leaves_it(drawn: dict[str, str]) -> None:
    """By the width of wide fonts: 0.62 of the size for each character, 0.56 for long lines of words."""
    for name, picture in drawn.items():
        root = ElementTree.fromstring(picture)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for text in root.iter("{http://www.w3.org/2000/svg}text"):
            words, size, x = text.text or "", float(text.attrib["font-size"]), float(text.attrib["x"])
            length = len(words) * size * (0.62 if len(words) < 40 else 0.56)
            left = x - {"start": 0, "middle": length / 2, "end": length}[text.attrib["text-anchor"]]
            assert left >= 0, (name, words)
            assert left + length <= width, (name, words)
            assert float(text.attrib["y"]) < height, (name, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_every_page_is_on_the_map() -> None:
    on_the_map = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8"))}
    assert {page.resolve() for page in DOCS.rglob("*.md")} - {DOCS / "index.md"} <= on_the_map


def test_the_golden_tokens_on_the_page_are_the_tests() -> None:
    text = (DOCS / "randomness.md").read_text(encoding="utf-8")
    told = [tuple(map(int, row)) for row in re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)]
    known = {(draw, fields): token for law, draw, fields, token in GOLDEN if law == "sparse"}
    assert [(*fields, known["inverse", fields], known["race", fields]) for draw, fields in known if draw == "inverse"] == told


def test_the_contract_on_the_page_is_the_source() -> None:
    source = (ROOT / "src" / "nalar" / "engines" / "base.py").read_text(encoding="utf-8").splitlines()
    (quoted,) = re.findall(r"```py\n(.*?)```", (DOCS / "own_engine.md").read_text(encoding="utf-8"), re.DOTALL)
    for line in filter(str.strip, quoted.splitlines()):
        assert line in source
