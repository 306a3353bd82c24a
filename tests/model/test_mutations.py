"""The explorer can fail: each change of a script breaks a promise that it names."""

from __future__ import annotations

import pytest

from .explorer import explore
from .mutations import MUTATIONS, Mutation
from .story import story


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_changed_script_is_found(mutation: Mutation) -> None:
    result = explore(mutation.world, mutation.store())
    assert result.found is not None, "no promise was broken"
    told = story(mutation.world, result.found, mutation.store())
    assert str(result.found.violation) in told
    assert len(told.splitlines()) == len(result.found.trace) + 2
    in_all_orders = explore(mutation.world, mutation.store(), in_all_orders=True).found
    assert in_all_orders is not None
    assert in_all_orders.violation.promise == result.found.violation.promise


def test_there_are_enough_of_them() -> None:
    assert len({mutation.what for mutation in MUTATIONS}) >= 50
