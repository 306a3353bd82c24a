"""examples/django as its README has it: a real project, tree and database."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest
from redis import Redis

from tests.process.shared import counter, push_many, wait_settled
from tests.support.documents import ROOT
from tests.support.postgres import Postgres
from tests.support.server import Server
from tests.support.tree import ForkqTree

EXAMPLE = ROOT / "examples" / "django"
THREADS = 3
# What a test adds to the jobs of the example: a job that tells its thread's connection, and waits
# until so many threads have told theirs.
PROBES = """
import json, os, pathlib, threading, time
from django.db import connection


class Probe(forkq.Job, retry=False):
    def perform(self, path: str, meet: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            [backend] = cursor.fetchone()
        seen = {"thread": f"{os.getpid()}/{threading.get_ident()}", "backend": backend}
        with open(path, "a") as file:
            file.write(json.dumps(seen) + "\\n")
        end = time.monotonic() + 60
        while met(path) < meet and time.monotonic() < end:
            time.sleep(0.01)


def met(path):
    lines = pathlib.Path(path).read_text().splitlines()
    return len({json.loads(line)["thread"] for line in lines})
"""


class DjangoTree(ForkqTree):
    """`manage.py forkq start` in a copy of the example."""

    program = (sys.executable, "manage.py", "forkq")

    def __init__(self, redis: Server, env: dict[str, str]) -> None:
        super().__init__(env={**env, "REDIS_URL": redis.url})
        shutil.copytree(EXAMPLE, self.cwd, dirs_exist_ok=True)
        self.seen = self.root / "seen"

    def manage(self, *args: str) -> str:
        """What a command of the project prints."""
        done = subprocess.run(
            [sys.executable, "manage.py", *args],
            cwd=self.cwd, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=180, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def append(self, file: str, text: str) -> None:
        """Changes the project."""
        with (self.cwd / file).open("a") as opened:
            opened.write(text)

    def probes(self) -> list[dict[str, Any]]:
        """What the jobs of PROBES have told, oldest first."""
        text = self.seen.read_text() if self.seen.exists() else ""
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """A server of one test alone, which may restart it."""
    server = Postgres().start()
    yield server
    server.close()


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Postgres | None:
    """A server, where there is PostgreSQL."""
    try:
        server: Postgres = request.getfixturevalue("postgres")
    except pytest.skip.Exception:
        return None
    return server


@pytest.fixture
def example(redis_server: Server) -> Iterator[Callable[..., DjangoTree]]:
    """Copies of the example, with the database of that server, else with a file."""
    trees: list[DjangoTree] = []

    def copy(postgres: Postgres | None = None) -> DjangoTree:
        host = {} if postgres is None else {"PGHOST": str(postgres.folder)}
        trees.append(
            DjangoTree(redis_server, {**host, "PGUSER": "forkq", "PGDATABASE": "postgres"})
        )
        return trees[-1]

    yield copy
    for tree in trees:
        tree.close()


NEW_JOB = """

@forkq.job(name="Print")
def show(text: str) -> None:
    print(text)
"""
TASK = """
from django.tasks import task


@task
def add(first, second):
    return first + second
"""
ORDER = """
import time
from django.test import Client
from orders.models import Order
order = {"email": "a@b.de", "total": "7.50"}
Client(HTTP_ACCEPT_LANGUAGE="de").post("/orders/", order)
end = time.monotonic() + 60
while not (text := Order.objects.get().confirmation) and time.monotonic() < end:
    time.sleep(0.02)
print(text)
"""


def test_the_example_runs_and_restarts(
    example: Callable[..., DjangoTree], redis: Redis, database: Postgres | None
) -> None:
    """An order, its confirmation in the customer's language, new code without a stop, the end."""
    tree = example(database)
    tree.manage("migrate")
    tree.start().wait_ready()
    assert "You pay 7,50" in tree.manage("shell", "-c", ORDER)
    wait_settled(redis)
    tree.append("orders/jobs.py", NEW_JOB)
    assert "every child is new" in tree.run("restart", "--wait").stdout
    push_many(tree.env["REDIS_URL"], "Print", [["the new code"]])
    tree.wait_log("the new code")
    assert tree.stop() == 0
    tree.assert_gone()


def test_a_restart_of_postgres_fails_at_most_one_job_of_each_thread(
    example: Callable[..., DjangoTree], postgres: Postgres, redis: Redis
) -> None:
    tree = example(postgres)
    tree.append("orders/jobs.py", PROBES)
    tree.start().wait_ready()
    probe(tree, THREADS, meet=THREADS)
    wait_settled(redis)
    before = {seen["thread"]: seen["backend"] for seen in tree.probes()}
    assert len(before) == THREADS
    probe(tree, THREADS, meet=THREADS)  # each thread keeps its connection: CONN_MAX_AGE is None
    wait_settled(redis)
    assert {seen["thread"]: seen["backend"] for seen in tree.probes()} == before
    postgres.restart()
    probe(tree, 40)
    wait_settled(redis)
    assert tree.stop() == 0  # it flushes the counts
    failed = counter(redis, "failed")
    assert counter(redis, "processed") == 2 * THREADS + 40
    assert 1 <= failed <= THREADS  # the restart was noticed
    assert len(tree.probes()) == 2 * THREADS + 40 - failed


def test_preloaded_children_share_no_connection(
    example: Callable[..., DjangoTree], postgres: Postgres, redis: Redis
) -> None:
    """Even if the import of the app, in the master, has connected."""
    tree = example(postgres)
    tree.append("orders/jobs.py", PROBES + "\nprint(connection.cursor(), 'of the master')\n")
    settings = "FORKQ['forkq'] = {'preload': True, 'workers': 2}\n"
    settings += "FORKQ['capsules']['default']['concurrency'] = 1\n"
    tree.append("shop/settings.py", settings)
    tree.start().wait_ready()
    tree.wait_log("of the master")
    probe(tree, 2, meet=2)
    wait_settled(redis)
    first, second = tree.probes()
    assert first["thread"].split("/")[0] != second["thread"].split("/")[0]
    assert first["backend"] != second["backend"]
    assert "sockets" not in tree.log_text()  # what the doctor says of open ones
    assert tree.stop() == 0


def probe(tree: DjangoTree, count: int, *, meet: int = 0) -> None:
    rows: list[list[Any]] = [[str(tree.seen), meet]] * count
    push_many(tree.env["REDIS_URL"], "orders.jobs.Probe", rows)


END_TO_END = """
from django.test import TransactionTestCase
from forkq.testing.server import ForkqServer, RedisForTests
from orders.jobs import Confirm
from orders.models import Order


class ServerTest(TransactionTestCase):
    def test_a_child_has_the_settings_and_the_database_of_the_test(self):
        with RedisForTests() as redis, ForkqServer(redis.url) as server:
            server.start()
            order = Order.objects.create(email="a@example.com", total=2)
            server.wait_for(Confirm.perform_async(order.pk))
            self.assertIn("starting", server.log)
        order.refresh_from_db()
        self.assertEqual(order.confirmation, "You pay 2.00")
"""


def test_a_test_of_the_project_starts_it_as_the_project_does(
    example: Callable[..., DjangoTree],
) -> None:
    """``forkq_server``: with settings.FORKQ, and on the test's database, not on the real one."""
    tree = example()
    tree.append("orders/tests.py", END_TO_END)
    tree.append("shop/settings.py", "DATABASES['default']['TEST'] = {'NAME': BASE_DIR / 'test.db'}")
    assert "Found 1 test" in tree.manage("test", "orders")
    assert not (tree.cwd / "shop.sqlite3").exists()


@pytest.mark.parametrize(
    ("variable", "problem"),
    [
        (None, "DJANGO_SETTINGS_MODULE is not set: use `manage.py forkq`"),
        ("shop.setings", "DJANGO_SETTINGS_MODULE is shop.setings: No module named 'shop.setings'"),
    ],
)
def test_missing_settings_are_told_without_a_traceback(
    example: Callable[..., DjangoTree], variable: str | None, problem: str
) -> None:
    tree = example()
    tree.program = (sys.executable, "-m", "forkq.contrib.django")
    tree.env.pop("DJANGO_SETTINGS_MODULE", None)
    if variable is not None:
        tree.env["DJANGO_SETTINGS_MODULE"] = variable
    done = tree.run("start")
    assert done.returncode == 2
    assert done.stderr.startswith(f"forkq: {problem}")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(django.VERSION < (6,), reason="Django 6 is not installed: Python 3.12 has it")
def test_tasks_of_django_run_in_the_tree(example: Callable[..., DjangoTree], redis: Redis) -> None:
    """Children import the module ``tasks`` of each app."""
    tree = example()
    backend = {"BACKEND": "forkq.contrib.django.tasks.ForkqBackend"}
    tree.append("shop/settings.py", f"TASKS = {{'default': {backend}}}\n")
    tree.append("orders/tasks.py", TASK)
    tree.start().wait_ready()
    jid = tree.manage("shell", "-c", "from orders.tasks import add; print(add.enqueue(1, 2).id)")
    wait_settled(redis)
    show = f"from orders.tasks import add; print(add.get_result('{jid.split()[-1]}').return_value)"
    assert tree.manage("shell", "-c", show).split()[-1] == "3"
    assert tree.stop() == 0
