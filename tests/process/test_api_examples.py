"""The examples of docs/api.md run as printed, and have each name that they explain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.api_tasks import TASKS, Task
from tests.support.documents import run_program
from tests.support.server import Server


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.title)
def test_an_example_has_each_name_of_its_task(task: Task) -> None:
    words = set(re.findall(r"\w+", task.example))
    assert {name.rpartition(".")[2] for name in task.names} - words == set()


def test_the_examples_run_in_order(redis_server: Server, tmp_path: Path) -> None:
    jobs, *others = TASKS
    (tmp_path / "jobs.py").write_text(jobs.example)
    # Else each push warns that nothing serves its queue.
    (tmp_path / "forkq.toml").write_text('[capsules.default]\nqueues = ["*"]\n')
    run_program(
        f"EXAMPLES = {[(task.title, task.example) for task in others]!r}\n"
        "for number, (title, text) in enumerate(EXAMPLES):\n"
        "    exec(compile(text, title, 'exec'), {'__name__': f'example_{number}'})\n",
        tmp_path,
        redis_server,
    )
