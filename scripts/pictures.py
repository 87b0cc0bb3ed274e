"""Draw docs/pictures/*.svg: what stages do to real rows.  `make docs` writes them; tests/test_pages.py fails when they are old.

Plain SVG text, written by hand: the same bytes on every machine, no date, no library but NumPy, and text that stays text.
Two kinds: ``Table`` (tokens down, chains across, a bar in each cell) and ``Curves`` (probability by rank, and where cuts fall).
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nalar import Chain, Distribution, History

DOCS = Path(__file__).resolve().parent.parent / "docs"
INK, QUIET, PALE, LINE, BLUE, RED = "#1f2328", "#6e7781", "#e7eaee", "#c3c9d0", "#2f6f9f", "#b3442f"
SANS = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Row(NamedTuple):
    """A row of a real model, with its prompt."""

    logits: npt.NDArray[np.float64]
    prompt: str
    ids: list[int]
    texts: dict[int, str]

    def law(self, chain: str = "identity") -> Distribution:
        return Chain.parse(chain).distribution(self.logits, History(self.ids))

    def id(self, text: str) -> int:
        return next(token for token, known in self.texts.items() if known == text)


def load_row(name: str) -> Row:
    """One of the rows that scripts/real_row.py stored."""
    told = json.loads((DOCS / "data" / "rows.json").read_text(encoding="utf-8"))[name]
    with np.load(DOCS / "data" / "rows.npz") as stored:
        logits = told["greatest"] + stored[name].astype(np.float64)
    return Row(logits, told["prompt"], told["ids"], {int(token): text for token, text in told["texts"].items()})


@dataclass(frozen=True)
class Table:
    """The ``shown`` most likely tokens of a row under several chains.  The pale bar is the row as it came, the blue one the law."""

    row: str
    chains: tuple[str, ...]
    caption: str
    shown: int = 10

    def svg(self) -> str:
        row = load_row(self.row)
        raw = row.law()
        tokens = raw.top(self.shown).tolist()
        laws = [raw, *(row.law(chain) for chain in self.chains)]
        most = max(law.prob(token) for token in tokens for law in laws)
        titles = [["as it came"], *map(title_lines, self.chains)]
        top, lines = 62 + 16 * max(map(len, titles)), textwrap.wrap(self.caption, (len(laws) * COLUMN + LEFT - 24) // 8)
        width, bottom = LEFT + len(laws) * COLUMN + 8, top + len(tokens) * LINE_HEIGHT + 6
        height = bottom + 48 + 18 * len(lines)
        parts = [text(16, 28, f"“{row.prompt} …”", 15, INK, weight=600)]
        parts += [text(LEFT - 12, top + 14 + at * LINE_HEIGHT, label(row, token), 13, INK, MONO, "end") for at, token in enumerate(tokens)]
        parts += [stroke(16, bottom, width - 16, bottom, PALE), text(LEFT - 12, bottom + 18, "all others", 12, QUIET, anchor="end")]
        for place, (law, title) in enumerate(zip(laws, titles, strict=True)):
            parts += column(LEFT + place * COLUMN, top, title, law, raw, tokens, most)
        parts += [text(16, bottom + 50 + 18 * at, line, 13, QUIET) for at, line in enumerate(lines)]
        return document(width, height, f"What {', '.join(self.chains)} do to “{row.prompt}”", parts)


LEFT, COLUMN, LINE_HEIGHT, BAR = 104, 176, 22, 108


def column(left: int, top: int, title: list[str], law: Distribution, raw: Distribution, tokens: list[int], most: float) -> list[str]:
    """One law: its chain, what is left of the row, a bar for each of ``tokens`` and a number for the rest."""
    parts = [text(left, top - 10 - 16 * (len(title) - at), line, 12, INK, MONO, weight=600) for at, line in enumerate(title)]
    parts.append(text(left, top - 8, f"{law.ids.size:,} left · {law.entropy():.2f} nats", 11, QUIET))
    for at, token in enumerate(tokens):
        parts += bars(left, top + at * LINE_HEIGHT, raw.prob(token), law.prob(token), most)
    rest = law.ids.size - sum(law.prob(token) > 0 for token in tokens)
    mass = max(0.0, 1 - sum(law.prob(token) for token in tokens))
    words, colour = (f"{percent(mass)} on {rest:,}", INK) if rest else ("cut", RED)
    return [*parts, text(left, top + len(tokens) * LINE_HEIGHT + 24, words, 11, colour)]


def bars(left: int, top: int, before: float, after: float, most: float) -> list[str]:
    """One cell: pale before, blue after, and the number; a token that cannot be drawn says so."""
    pale = box(left, top + 2, BAR * before / most, 16, PALE)
    if after == 0:
        return [pale, text(left + BAR * before / most + 6, top + 14, "cut", 11, RED)]
    end = left + BAR * max(before, after) / most + 6
    return [pale, box(left, top + 5, max(BAR * after / most, 0.8), 10, BLUE), text(end, top + 14, percent(after), 11, INK)]


@dataclass(frozen=True)
class Curves:
    """Probability by rank, both axes logarithmic, with the place where each cut falls: one panel a row."""

    rows: tuple[str, ...]
    cuts: tuple[str, ...]
    caption: str

    def svg(self) -> str:
        width, height = 34 + len(self.rows) * (PANEL + 48), 366
        parts = [text(16, height - 14, self.caption, 13, QUIET)]
        for place, name in enumerate(self.rows):
            parts += self.panel(54 + place * (PANEL + 56), load_row(name))
        return document(width, height, f"Where {', '.join(self.cuts)} cut a sure row and an unsure one", parts)

    def panel(self, left: int, row: Row) -> list[str]:
        probs = np.sort(row.law().probs)[::-1]
        seen = int((probs >= LEAST).sum())
        parts = [text(left, 28, f"“{row.prompt} …”", 14, INK, weight=600), *axes(left, probs.size)]
        ranks = np.unique(np.geomspace(1, seen, 160).round().astype(int))
        curve = " ".join(f"{left + across(rank, probs.size):.1f},{down(probs[rank - 1]):.1f}" for rank in ranks)
        parts.append(f'<polyline points="{curve}" fill="none" stroke="{BLUE}" stroke-width="2.5"/>')
        kept = sorted((row.law(cut).ids.size, cut) for cut in self.cuts)
        parts += [stroke(x, TOP, x, BOTTOM, RED, "4 3") for x in (left + across(size, probs.size) for size, _ in kept)]
        for at, (size, cut) in enumerate(kept):
            x, y, words = left + across(size, probs.size), TOP + 16 + at * 22, f"{cut}: {size:,}"
            parts += [box(x + 3, y - 12, 7.4 * len(words) + 4, 16, "#ffffff"), text(x + 5, y, words, 12, RED, MONO)]
        return parts


PANEL, TOP, BOTTOM, LEAST = 380, 44, 290, 1e-7


def across(rank: int, size: int) -> float:
    return float(np.log(rank) / np.log(size) * PANEL)


def down(prob: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * float(np.clip(1 - np.log10(max(prob, LEAST)) / np.log10(LEAST), 0, 1))


def axes(left: int, size: int) -> list[str]:
    parts = [stroke(left, BOTTOM, left + PANEL, BOTTOM, LINE), stroke(left, TOP, left, BOTTOM, LINE)]
    for rank in (1, 10, 100, 1_000, 10_000):
        parts.append(text(left + across(rank, size), BOTTOM + 16, f"{rank:,}", 11, QUIET, anchor="middle"))
    for power in (0, -2, -4, -6):
        name = {0: "100%", -2: "1%", -4: "0.01%", -6: "10⁻⁶"}[power]
        parts.append(text(left - 5, down(10.0**power) + 4, name, 11, QUIET, anchor="end"))
    return [*parts, text(left + PANEL, BOTTOM + 32, "rank of the token", 11, QUIET, anchor="end")]


def title_lines(chain: str) -> list[str]:
    """A chain's text in lines that fit a column: one stage a line, its named fields below it."""
    lines = []
    for stage in chain.split(" | "):
        first, comma, rest = stage.partition(", ")
        lines += [first + comma.rstrip(), f"  {rest}"] if comma and len(stage) > 23 else [stage]
    return lines


def label(row: Row, token: int) -> str:
    """A token's text; a dot stands for its space."""
    return row.texts[token].replace(" ", "·")


def percent(prob: float) -> str:
    return f"{100 * prob:.1f}%" if prob >= 0.0005 else "<0.1%"


def text(x: float, y: float, words: str, size: int, fill: str, family: str = SANS, anchor: str = "start", weight: int = 400) -> str:
    space = ' xml:space="preserve"' if words.startswith(" ") else ""
    style = f'font-family="{family}" font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}{space}>{escape(words, quote=False)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>'


def stroke(x: float, y: float, to_x: float, to_y: float, colour: str, dashes: str = "none") -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}" stroke-dasharray="{dashes}"/>'


def document(width: int, height: int, title: str, parts: list[str]) -> str:
    """The whole file.  It brings its own white ground, so it reads on a dark page too."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", box(0, 0, width, height, "#ffffff"), *parts, "</svg>\n"])


def pictures() -> dict[str, str]:
    """File name → SVG."""
    cat = load_row("cat")
    said, likely = cat.id(" cat"), [cat.id(f" {word}") for word in ("floor", "table", "chair", "bed")]
    drawn: dict[str, Table | Curves] = {
        "knobs.svg": Table(
            "cat", ("temperature(0.6)", "top_k(6)", "top_p(0.3)"),
            "Temperature moves mass and cuts nothing; top_k counts tokens; top_p counts mass. "
            "Pale is the row as it came, blue is what is drawn from, and a dot stands for a space.",
        ),
        "temperature.svg": Table(
            "indonesia", ("temperature(0.5)", "temperature(1.5)", "temperature(0)"),
            "Below 1 the likely tokens gain, above 1 the tail does; the order never changes. 0 keeps one token. "
            "Pale is the row as it came, blue is what is drawn from.",
        ),
        "truncation.svg": Table(
            "indonesia", ("top_k(4)", "top_p(0.7)", "min_p(0.02)"),
            "What survives keeps its proportions and shares what was cut. Pale is the row as it came, blue is what is drawn from.",
        ),
        "cuts.svg": Curves(
            ("indonesia", "cat"), ("top_k(40)", "top_p(0.9)", "min_p(0.05)"),
            "How many tokens each cut leaves where the model is sure, and where it is not. It keeps those left of its line.",
        ),
        "penalties.svg": Table(
            "cat", ("repetition(1.2)", 'frequency(1.0, scope="all")', 'presence(1.0, scope="all")'),
            "The prompt has “·cat” twice and “·mat” once. Frequency counts that; presence and repetition do not. "
            "Repetition scales the logit itself: 1.2 takes 2.7 nats from a logit of 16.",
        ),
        "constraints.svg": Table(
            "cat", (f"ban([{said}])", f"bias({{{said}: -2.0}})", f"allow({sorted(likely)})"),
            f"Id {said} is “·cat”. A ban gives its share to all others, a bias moves part of it, allow leaves only what is named.",
        ),
        "order.svg": Table(
            "cat", ("temperature(1.8) | top_p(0.5)", "top_p(0.5) | temperature(1.8)"),
            "The same two stages. Before the cut, heat brings more tokens in; after it, there is no tail to heat.",
        ),
    }  # fmt: skip
    return {name: picture.svg() for name, picture in drawn.items()}


def main() -> None:
    folder = DOCS / "pictures"
    folder.mkdir(exist_ok=True)
    for name, drawn in pictures().items():
        (folder / name).write_text(drawn, encoding="utf-8")
        print(f"wrote docs/pictures/{name}")


if __name__ == "__main__":
    main()
