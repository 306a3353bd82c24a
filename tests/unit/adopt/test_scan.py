"""``forkq adopt`` finds what is to change, in small code bases of each library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from forkq.adopt.scan import OTHERS
from forkq.cli.adopt import adopt
from tests.support.documents import ROOT, anchors
from tests.support.printed import objects

CELERY = {
    "shop/tasks.py": """\
from celery import Celery, chord, shared_task
from celery.signals import task_failure

app = Celery("shop", broker="redis://localhost")
app.conf.task_acks_late = True
app.conf.update(task_time_limit=60, unheard_of=1)


@app.task(bind=True, acks_late=True, max_retries=5, no_such=1)
def charge(self, order):
    try:
        print(self.request.id)
    except OSError as error:
        raise self.retry(exc=error, countdown=60)


@shared_task
def add(self, x, y):
    return self.request


@task_failure.connect
def failed(**kwargs): ...
""",
    "shop/views.py": """\
from shop.tasks import add, charge


def buy(request, response):
    charge.delay(7)
    charge.apply_async(args=[7], countdown=60, link=add.s(1))
    response.s(1)
    request.retry()
""",
    "settings.py": "CELERY_TASK_ALWAYS_EAGER = True\nCELERY_FOO = 1\nBROKER_URL = 1\ninclude = 1\n",
}
RQ = {
    "tasks.py": """\
import rq
from redis import Redis
from rq import Queue, Retry
from rq.decorators import job

queue = Queue("mail", connection=Redis())


@job("mail", connection=Redis(), timeout=5)
def welcome(user): ...


def count(path): ...


welcome.delay(7)
queue.enqueue(count, "a", job_timeout=30, retry=Retry(max=3), depends_on=None, path=1)
queue.enqueue_in(None, count, "a")
print(rq.get_current_job())
""",
}
DRAMATIQ = {
    "actors.py": """\
import dramatiq


@dramatiq.actor(queue_name="mail", max_retries=3, time_limit=60_000, priority=1)
async def welcome(user): ...
""",
    "web.py": """\
from actors import welcome


def sign_up(client):
    client.send("hello")
    welcome.send(7)
    welcome.send_with_options(args=(7,), delay=60_000)
""",
}


CELERY_WORD = "write `@forkq.job`; say `name=` if other programs push the job by its name"


def run(folder: Path, files: Mapping[str, str], *arguments: str) -> Result:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return CliRunner().invoke(adopt, [str(folder), *arguments], standalone_mode=False)


def found(folder: Path, files: Mapping[str, str]) -> dict[str, str]:
    """ "FILE:LINE" with the words that are explained there, the first sentence apart."""
    result = run(folder, files, "--json")
    assert result.return_value == 1
    lines: dict[str, str] = {}
    for place in objects(result.stdout):
        where = f"{Path(place['file']).relative_to(folder)}:{place['line']}"
        words = [sentence.split(":")[0] for sentence in place["instead"]]
        lines[where] = " | ".join(filter(None, [lines.get(where), *words]))
    return lines


def test_celery(tmp_path: Path) -> None:
    lines = found(tmp_path, CELERY)
    assert set(lines) == {
        *(f"shop/tasks.py:{line}" for line in (4, 5, 6, 9, 12, 14, 17, 22)),
        *("shop/views.py:5", "shop/views.py:6", "settings.py:1"),
    }
    assert lines["shop/tasks.py:6"] == "task_time_limit"
    assert lines["shop/tasks.py:9"].endswith("bind | acks_late | max_retries | no_such")
    assert lines["shop/tasks.py:12"] == "request"
    assert "countdown | link" in lines["shop/views.py:6"]
    assert "a step of a flow" in lines["shop/views.py:6"]


def test_rq(tmp_path: Path) -> None:
    lines = found(tmp_path, RQ)
    assert set(lines) == {f"tasks.py:{line}" for line in (6, 9, 16, 17, 18, 19)}
    assert "job_timeout | retry | depends_on" in lines["tasks.py:17"]
    assert lines["tasks.py:19"] == "get_current_job"


def test_dramatiq(tmp_path: Path) -> None:
    lines = found(tmp_path, DRAMATIQ)
    assert set(lines) == {"actors.py:4", "web.py:6", "web.py:7"}
    assert "queue_name | max_retries | time_limit | priority" in lines["actors.py:4"]
    assert "async" not in lines["actors.py:4"]
    assert lines["web.py:7"].endswith("args | delay")


SIGNALS = [
    "from celery import signals\n\n@signals.task_failure.connect\ndef f(**_): ...\n",
    "import celery.signals\n\n@celery.signals.task_failure.connect\ndef f(**_): ...\n",
    "import celery.signals as s\n\n@s.task_failure.connect\ndef f(**_): ...\n",
    "from celery import signals as s\n\n@s.task_failure.connect\ndef f(**_): ...\n",
    "import celery\n\n@celery.signals.task_failure.connect\ndef f(**_): ...\n",
    "from celery.signals import task_failure as t\n\n@t.connect\ndef f(**_): ...\n",
]


@pytest.mark.parametrize("text", SIGNALS)
def test_signals_are_found_in_every_form_of_import(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, {"a.py": text}) == {"a.py:3": "task_failure"}


def test_what_is_asked_of_a_result_is_found(tmp_path: Path) -> None:
    """And nothing that is asked of another object."""
    text = """\
from celery import shared_task
from celery.result import AsyncResult
from kombu import Exchange, Queue
@shared_task
def add(x): ...
def view(app, request):
    made = add.delay(1)
    print(made.get(timeout=1), made.status)
    add.apply_async((1,)).get()
    app.control.revoke(made.id, terminate=True)
    AsyncResult("x").ready()
    request.get("x")
    request.status = {}.get("y")
QUEUES = [Queue("mail", Exchange("mail"))]
"""
    lines = found(tmp_path, {"a.py": text})
    assert set(lines) == {f"a.py:{line}" for line in (4, 7, 8, 9, 10, 11, 14)}
    assert {"get", "status"} <= set(lines["a.py:8"].split(" | "))
    assert "Queue" in lines["a.py:14"]
    assert "Exchange" in lines["a.py:14"]


def test_what_is_asked_of_a_job_of_rq_is_found(tmp_path: Path) -> None:
    text = """\
from rq import Queue, get_current_job
from rq.job import Job
q = Queue()
job = q.enqueue(print)
job.meta["a"] = 1
print(job.get_status(), job.return_value())
Job.fetch("x").cancel()
get_current_job().save_meta()
print.meta
"""
    lines = found(tmp_path, {"a.py": text})
    assert set(lines) == {f"a.py:{line}" for line in (3, 4, 5, 6, 7, 8)}
    assert "cancel" in lines["a.py:7"]


def test_documents_have_an_address(tmp_path: Path) -> None:
    """A reader may have no checkout of forkq."""
    text = "from celery import chain\nchain()\n"
    address = "https://github.com/forkq/forkq/blob/main/docs/flows.md"
    assert address in run(tmp_path, {"a.py": text}).stdout
    assert address in run(tmp_path, {"a.py": text}, "--json").stdout


def test_what_a_reader_sees(tmp_path: Path) -> None:
    result = run(tmp_path, DRAMATIQ)
    assert f"{tmp_path}/web.py:6  welcome.send(7)  (dramatiq)" in result.stdout
    assert "write `J.perform_async(...)`" in result.stdout
    assert result.stdout.endswith("3 places to change, in 2 of 2 Python files\n")


def test_nothing_to_change(tmp_path: Path) -> None:
    """Also a code base of forkq, whose words are partly the same."""
    files = {
        "jobs.py": "import forkq\n@forkq.job(queue='a')\ndef f(): ...\nf.delay(1)\nf.send(2)\n"
    }
    result = run(tmp_path, files)
    assert result.return_value == 0
    assert result.stdout.startswith("nothing to change")


def test_what_is_moved_already_is_no_place(tmp_path: Path) -> None:
    """In a file that uses both; and a decorator of a third library is none of Celery's."""
    moved = "import forkq, rq\n@forkq.job(queue='a')\ndef f(): ...\n"
    third = "from invoke import task\nimport celery\n@task\ndef g(): ...\n"
    assert run(tmp_path, {"a.py": moved, "b.py": third}).return_value == 0


def test_a_decorator_under_another_name(tmp_path: Path) -> None:
    files = {"a.py": "from celery import shared_task as t\n@t(bind=True)\ndef f(self): ...\n"}
    assert found(tmp_path, files) == {"a.py:2": f"{CELERY_WORD} | bind"}


def test_a_file_that_is_no_python_is_told_and_skipped(tmp_path: Path) -> None:
    broken = {"a.py": "def f(:\n", "b.py": "x = '\0'\n", "c.py": "# coding: no-such\n"}
    (tmp_path / "d.py").write_bytes(b"\n\n\nx = '\xff'\n")  # no UTF-8
    result = run(tmp_path, {**DRAMATIQ, **broken})
    assert result.return_value == 1
    assert f"{tmp_path}/a.py: skipped: line 1: " in result.stderr
    assert "b.py: skipped" in result.stderr
    assert "c.py: skipped" in result.stderr
    assert "d.py: skipped" in result.stderr
    assert "3 places to change" in result.stdout


@pytest.mark.parametrize("folder", [".venv", "node_modules", "site-packages"])
def test_installed_packages_are_left_out(tmp_path: Path, folder: str) -> None:
    files = {f"{folder}/{name}": text for name, text in DRAMATIQ.items()}
    assert run(tmp_path, files).return_value == 0


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(adopt, [str(tmp_path / "nowhere")])
    assert result.exit_code == 2
    assert "does not exist" in result.output


def test_an_import_of_a_smaller_library_leads_to_its_section(tmp_path: Path) -> None:
    """And each section is there, under a heading of its own."""
    there = anchors(ROOT / "docs" / "from-others.md")
    assert set(OTHERS.values()) <= there
    for package, section in OTHERS.items():
        result = run(tmp_path, {"uses.py": f"import os\nfrom {package}.parts import thing\n"})
        assert result.return_value == 1
        address = f"https://github.com/forkq/forkq/blob/main/docs/from-others.md#{section}"
        place = f"{tmp_path / 'uses.py'}:2  import of {package}  ({package})"
        assert f"{place}\n    see {address}" in result.stdout
