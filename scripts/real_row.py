"""Store the two rows of a real model that the docs show: docs/data/rows.npz and rows.json.  Run once; the pictures read the files.

A row is kept as its distance below its largest logit, in float16: in steps of 1/256 down to −8, of 1/8 below, where 49,000
tokens share a few per cent.  That is exact enough to look at, and small enough for a repository.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import nalar
from nalar.engines.base import Work

DATA = Path(__file__).resolve().parent.parent / "docs" / "data"
PROMPTS = {
    "indonesia": "The capital of Indonesia is",  # the model is fairly sure
    "cat": "The cat sat on the mat. The cat sat on the",  # it is not, and two of its best were said before
}
NAMED = 60  # most likely tokens whose text is stored


def main() -> None:
    rows: dict[str, npt.NDArray[np.float16]] = {}
    told: dict[str, dict[str, Any]] = {}
    with nalar.load("smollm2", reproducible=True) as model:
        vocabulary = model.engine.vocabulary
        for name, prompt in PROMPTS.items():
            ids = vocabulary.encode(prompt)
            sequence = model.engine.open()
            row = np.array(model.engine.step([Work(sequence, tuple(ids))])[0][-1], np.float64)[: vocabulary.size]
            model.engine.close(sequence)
            best = np.argsort(-row, kind="stable")[:NAMED].tolist()
            texts = {token: vocabulary.pieces[token].decode(errors="replace") for token in sorted({*best, *ids})}
            rows[name] = coarse(row - row.max())
            told[name] = {"model": "SmolLM2-135M", "prompt": prompt, "ids": ids, "greatest": round(float(row.max()), 4), "texts": texts}
    np.savez_compressed(DATA / "rows.npz", **rows)
    (DATA / "rows.json").write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def coarse(below: npt.NDArray[np.float64]) -> npt.NDArray[np.float16]:
    return np.where(below > -8, np.round(below * 256) / 256, np.round(below * 8) / 8).astype(np.float16)


if __name__ == "__main__":
    main()
