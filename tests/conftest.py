"""What every test shares: reproducible hypothesis runs, and one loaded model for all that need a real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A plain run tries the same examples each time, so a red test stays red; test-long looks in new places.
settings.register_profile("house", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", parent=settings.get_profile("house"), derandomize=False, max_examples=1000, print_blob=True)
settings.load_profile("house")


@pytest.fixture(scope="session")
def smollm2() -> Iterator[Any]:
    """The bundled model.  Never skipped: a suite that passes without the main job is not a pass."""
    import nalar

    try:
        model = nalar.load("smollm2", threads=1)  # more would compete with the other workers
    except nalar.NalarError as error:
        pytest.fail(f"the bundled model did not load ({error}); `make setup` installs it", pytrace=False)
    yield model
    model.close()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the model run in one worker: it is loaded once, and its threads do not compete with a second copy's."""
    for item in items:
        if "smollm2" in getattr(item, "fixturenames", ()) or item.path.stem.startswith("test_llama"):
            item.add_marker(pytest.mark.xdist_group("smollm2"))
