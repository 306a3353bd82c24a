"""``processes = "one"``: what needs a second process is refused, with its place."""

from __future__ import annotations

import pytest

from tests.support.config_files import Failer, Loader

ONE = '[forkq]\nprocesses = "one"\n'


def test_one_process_has_one_child_and_all_else_of_a_configuration(loaded: Loader) -> None:
    config = loaded(f'{ONE}timeout = 7\nworkers = 1\n[capsules.mail]\nqueues = ["mail"]')
    assert config.in_one_process
    assert [capsule.name for capsule in config.capsules] == ["mail"]
    assert not loaded("").in_one_process


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("workers = 2", 'FILE: forkq.workers: processes = "one" has one child; leave workers or'),
        ("max_jobs = 9", 'FILE: forkq.max_jobs: processes = "one" ends no child; leave max_jobs'),
        ('max_memory = "1GB"', 'FILE: forkq.max_memory: processes = "one" ends no child'),
        ("job_hard_timeout = 5", "FILE: forkq.job_hard_timeout: processes"),
        ("[capsules.default]\nmax_age = 60", "FILE: capsules.default.max_age: processes"),
        (
            '[capsules.default]\n[capsules.mail]\nqueues = ["mail"]',
            'FILE: forkq.processes: "one" process cannot serve more than one capsule',
        ),
        (
            '[[redis.shards]]\nname = "b"\nurl = "redis://b:1"\nqueues = ["b"]',
            'FILE: forkq.processes: "one" process cannot serve [[redis.shards]]',
        ),
    ],
)
def test_what_needs_another_process_is_refused(problems: Failer, more: str, problem: str) -> None:
    [found] = problems(f"{ONE}{more}")
    assert found.startswith(problem)
