"""``[capsules]`` in forkq.toml, and the capsule that -q and -c mean."""

from __future__ import annotations

import pytest

from forkq.config.capsule import Capsule
from tests.support.config_files import Failer, Loader


class TestCapsules:
    @pytest.mark.parametrize(
        ("queues", "pairs", "mode"),
        [
            ('["a", "b"]', (("a", 0), ("b", 0)), "strict"),
            ('["a,1", "b,1"]', (("a", 1), ("b", 1)), "random"),
            ('["a,5", "b,1"]', (("a", 5), ("b", 1)), "weighted"),
            ('[["a", 5], ["b", 1]]', (("a", 5), ("b", 1)), "weighted"),
            ('["a,5", "b", ["c", 2]]', (("a", 5), ("b", 1), ("c", 2)), "weighted"),
            ('"tenant-*"', (("tenant-*", 0),), "strict"),
        ],
    )
    def test_spellings_of_queues(
        self, loaded: Loader, queues: str, pairs: tuple[tuple[str, int], ...], mode: str
    ) -> None:
        (capsule,) = loaded(f"[capsules.x]\nqueues = {queues}").capsules
        assert (capsule.queues, capsule.mode) == (pairs, mode)

    def test_stay_in_the_order_of_the_file(self, loaded: Loader) -> None:
        text = "".join(f"[capsules.{name}]\nqueues = ['{name}']\n" for name in "qzamb")
        assert [capsule.name for capsule in loaded(text).capsules] == list("qzamb")

    def test_their_own_workers_win_over_everything(self, loaded: Loader) -> None:
        text = "[capsules.a]\nqueues='a'\nworkers=4\n[capsules.b]\nqueues='b'"
        assert [c.workers for c in loaded(text, {"workers": 2}).capsules] == [4, 2]

    def test_the_default_capsule_needs_no_queues(self, loaded: Loader) -> None:
        (capsule,) = loaded("[capsules.default]\nconcurrency = 3").capsules
        assert capsule == Capsule("default", (("default", 0),), 3, 1)

    def test_any_other_does(self, problems: Failer) -> None:
        (line,) = problems("[capsules.bulk]\nconcurrency = 3")
        assert line.startswith("FILE: capsules.bulk.queues: missing, expected a list of queues")

    @pytest.mark.parametrize("name", ["clock", '"a b"', '"x*"'])
    def test_bad_names(self, problems: Failer, name: str) -> None:
        (line,) = problems(f"[capsules.{name}]\nqueues = 'a'")
        assert line.startswith(f"FILE: capsules.{name}: ")

    def test_q_and_c_are_for_the_capsule_default(self, loaded: Loader) -> None:
        text = "[capsules.default]\nqueues='a'\n[capsules.b]\nqueues='b'"
        first, second = loaded(text, {"queues": ("x",), "concurrency": 9}).capsules
        assert first == Capsule("default", (("x", 0),), 9, 1)
        assert second == Capsule("b", (("b", 0),), 5, 1)

    def test_or_for_the_only_one(self, loaded: Loader) -> None:
        (capsule,) = loaded("[capsules.b]\nqueues='b'", {"concurrency": 9}).capsules
        assert capsule == Capsule("b", (("b", 0),), 9, 1)

    def test_or_q_adds_one(self, loaded: Loader) -> None:
        text = "[capsules.a]\nqueues='a'\n[capsules.b]\nqueues='b'"
        capsules = loaded(text, FORKQ_QUEUES="x,2", FORKQ_CONCURRENCY="9").capsules
        assert capsules[2] == Capsule("default", (("x", 2),), 9, 1)

    def test_c_alone_is_refused_where_it_could_mean_any(self, problems: Failer) -> None:
        text = "[capsules.a]\nqueues='a'\n[capsules.b]\nqueues='b'"
        (line,) = problems(text, {"concurrency": 9})
        assert "of which capsule? The file has a, b" in line


class TestAsync:
    def test_it_runs_a_thousand_coroutines_beside_ten_threads(self, loaded: Loader) -> None:
        capsule, other = loaded(
            "[capsules.a]\nqueues='a'\nkind='async'\n[capsules.b]\nqueues='b'"
        ).capsules
        assert (capsule.is_async, capsule.concurrency, capsule.threads) == (True, 1000, 10)
        assert (other.is_async, other.concurrency, other.job_threads) == (False, 5, 5)
        assert capsule.job_threads < 20

    def test_or_as_many_as_it_says(self, loaded: Loader) -> None:
        text = "[capsules.a]\nqueues='a'\nkind='async'\nconcurrency=10000\nthreads=3"
        (capsule,) = loaded(text).capsules
        assert (capsule.concurrency, capsule.threads) == (10_000, 3)

    def test_more_than_a_thousand_threads_are_refused(self, problems: Failer) -> None:
        (line,) = problems("[capsules.a]\nqueues='a'\nconcurrency=1001")
        assert "capsules.a.concurrency: expected a whole number from 1 to 1000, found" in line
        assert 'kind = "async"' in line

    def test_threads_beside_threads_are_refused(self, problems: Failer) -> None:
        (line,) = problems("[capsules.a]\nqueues='a'\nthreads=3")
        assert line.startswith("FILE: capsules.a.threads: only a capsule with kind")

    def test_a_misspelt_kind_has_a_nearest_one(self, problems: Failer) -> None:
        (line,) = problems("[capsules.a]\nqueues='a'\nkind='asnyc'")
        assert line.endswith('found the string "asnyc"; the nearest one is "async"')

    def test_a_misspelt_key_has_a_nearest_one(self, problems: Failer) -> None:
        (line,) = problems("[capsules.a]\nqueues='a'\nkind='async'\nthraeds=3")
        assert "the nearest valid one is capsules.a.threads" in line


class TestTimeLimits:
    def test_a_hard_limit_below_the_limit_is_refused_with_file_and_key(
        self, problems: Failer
    ) -> None:
        text = "[forkq]\njob_hard_timeout = 20\n[capsules.a]\nqueues = 'a'\njob_timeout = 30"
        expected = "expected at least the 30 s of job_timeout, found 20"
        assert problems(text) == [f"FILE: forkq.job_hard_timeout: {expected}"]
        own = text.replace("job_timeout = 30", "job_timeout = 30\njob_hard_timeout = 20")
        assert problems(own) == [f"FILE: capsules.a.job_hard_timeout: {expected}"]

    def test_no_limit_is_below_none(self, loaded: Loader) -> None:
        text = "[forkq]\njob_timeout = 30\n[capsules.a]\nqueues = 'a'\njob_hard_timeout = 0"
        (capsule,) = loaded(text).capsules
        assert (capsule.job_timeout, capsule.job_hard_timeout) == (30, 0)
