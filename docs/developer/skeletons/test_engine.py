"""Copy me: the battery of laws on an engine of your own.  ``engine_contract`` is tests/engine_contract.py in Nalar's repository."""

from __future__ import annotations

from engine import load

from engine_contract import check_engine
from nalar.engines.base import LoadOptions
from nalar.model import Model


def test_it_keeps_the_laws_of_engines() -> None:
    loaded = load("mine", LoadOptions(context=256, sequences=2))
    check_engine(loaded.engine)
    loaded.release()


def test_a_model_speaks_through_it() -> None:
    loaded = load("mine", LoadOptions())
    with Model(loaded.engine, name=loaded.name, release=loaded.release) as model:
        assert model.generate("tick tock tick ", temperature=0, max_tokens=9).text == "tick tick"
