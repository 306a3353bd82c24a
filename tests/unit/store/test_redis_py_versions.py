"""forkq runs with the redis-py of an app: Celery 5.5, for example, allows none above 5.2.1."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

from tests.support.redis_py_versions import CONTRACT, VERSIONS, NotInstalled, run


@pytest.mark.slow
@pytest.mark.parametrize("packages", VERSIONS, ids=lambda packages: packages[0])
def test_each_redis_py_does_what_forkq_relies_on(packages: Sequence[str]) -> None:
    try:
        found = run(packages, [CONTRACT, "-n0"])
    except NotInstalled as error:
        pytest.skip(f"pip cannot install {' '.join(packages)}: {error}")
    assert found.returncode == 0, found.stdout


def test_the_versions_are_those_that_pyproject_allows() -> None:
    """The lowest ones are tried, and the last line tries the highest."""
    allowed = [Requirement(each) for each in requires("forkq") or ()]
    bounds = {each.name: each.specifier for each in allowed if not each.marker}
    for lowest in map(Requirement, VERSIONS[0]):
        [floor] = (each for each in bounds[lowest.name] if each.operator == ">=")
        assert f"=={floor.version}" in f"{lowest.specifier}"
    [ceiling] = (int(each.version) for each in bounds["redis"] if each.operator == "<")
    assert VERSIONS[-1] == (f"redis=={ceiling - 1}.*",)
