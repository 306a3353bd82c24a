"""The limits of a child's memory and age in forkq.toml."""

from __future__ import annotations

from tests.support.config_files import Failer, Loader


def test_a_hard_limit_below_the_other_one_is_refused(problems: Failer) -> None:
    """In the table that has the two, with both figures."""
    (line,) = problems(
        "[forkq]\nmax_memory = '1GB'\n[capsules.a]\nqueues = 'a'\nhard_max_memory = '500MB'"
    )
    assert line.startswith("FILE: capsules.a: hard_max_memory (500MB) is below max_memory (1GB)")


def test_a_child_is_not_killed_for_a_silence_that_is_none_yet(
    problems: Failer, loaded: Loader
) -> None:
    text = "[forkq]\nkill_silent_after = {0}\nsilent_after = 20"
    expected = "expected 0, or at least the 20 s of silent_after, found 19"
    assert problems(text.format(19)) == [f"FILE: forkq.kill_silent_after: {expected}"]
    assert [loaded(text.format(limit)).kill_silent_after for limit in (0, 20)] == [0, 20]
    assert loaded("[forkq]\nsilent_after = 80").replace_silent_after == 60


def test_a_variable_sets_the_limit_of_all_capsules(loaded: Loader) -> None:
    config = loaded("[forkq]\nmax_memory = '1GB'", FORKQ_MAX_MEMORY="300MB")
    assert config.capsules[0].recycling.max_memory == 300 << 20
