"""Fixtures that every test may ask for. Each ends what it started, and nothing else."""

from __future__ import annotations

import compileall
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import middleware
from forkq.current_job import leave_job, running_job
from forkq.wire import times
from tests.support import forked_workers, loops, preloaded
from tests.support.leaks import OpenResources
from tests.support.scheduling import MixedScheduling
from tests.support.server import Server
from tests.support.tree import StartTree

TESTS = Path(__file__).parent
LEAN = TESTS / "support" / "lean"
_ADDRESSES = pytest.StashKey[dict[str, str]]()


@pytest.fixture(autouse=True)
def host_time() -> Iterator[None]:
    """A child or a clock in this process may have measured the server's time: forget it."""
    yield
    times.follow_host()


def prepare_process() -> None:
    """Sets what the tests and all that they start find in their process.

    They run without PYTHONUNBUFFERED, as for most users: with it, no test would see a line that a
    buffer has lost."""
    os.environ.pop("PYTHONUNBUFFERED", None)
    # sentry_sdk imports eventlet where that is installed. That warns of its age, here and in what
    # the tests start, and then of each fork: only test_green_threads.py's programs may import it.
    os.environ["EVENTLET_TESTS"] = "1"
    sys.modules["eventlet"] = None  # type: ignore[assignment]
    sys.dont_write_bytecode = False


def pytest_configure(config: pytest.Config) -> None:
    """Compiles the package once, as pip does for a user. The tests start hundreds of forkq
    processes, and where PYTHONDONTWRITEBYTECODE is set, each would compile what it imports.

    What the tests start is spared two large packages (support/lean/).

    A run of all tests has its workers forked, and one process of each kind from which they fork
    what they start."""
    prepare_process()
    if hasattr(config, "workerinput"):
        return
    for folder in (Path(forkq.__file__).parent, TESTS.parent / "examples", LEAN):
        compileall.compile_dir(folder, quiet=2)
    path = filter(None, (str(LEAN), os.environ.get("PYTHONPATH")))
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    # As in pyproject.toml, for the runs of pytest that tests start.
    without = "-p no:anyio -p no:asyncio -p no:valkey"
    more = filter(None, (os.environ.get("PYTEST_ADDOPTS"), without))
    os.environ["PYTEST_ADDOPTS"] = " ".join(more)
    everything = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    if everything and set(config.option.tx) == {"popen"} and preloaded.possible():
        config.add_cleanup(forked_workers.start(config).kill)
        config.stash[_ADDRESSES] = preloaded.listen()
        config.add_cleanup(preloaded.close)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells each of xdist's workers what it shares with the others."""
    node.workerinput["forkq_preloaded"] = node.config.stash.get(_ADDRESSES, None)


def pytest_sessionstart() -> None:
    """Imports and the collection make next to no garbage."""
    gc.disable()
    loops.open_pipes()


def pytest_collection_finish() -> None:
    """What the imports and the collection made stays until the end. Python need not look through it
    each time that it, or the check for what a test left open, collects garbage.

    Hypothesis asks at its import what refers to some objects, and a frozen object is not in the
    answer. The runs of pytest inside tests import it, so it is imported before."""
    # An app that one test file imports must not act in the tests of another one.
    left = [*middleware.client.members, *middleware.server.members]
    assert not left, f"a test file has imported this middleware: see support/demo_app.py: {left}"
    importlib.import_module("hypothesis")
    gc.freeze()
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """More workers than processors: most tests wait for other processes most of their time."""
    return (cores := os.cpu_count() or 1) + min(3 * cores, 6)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves descriptors, threads or processes behind in the test process.

    So it does with one that leaves its thread a current job: later tests would run inside it.
    After the fixtures of wider scope it is the first to be set up, and so the last to be torn down.
    """
    resources = OpenResources()
    yield
    job = running_job()
    leave_job()
    assert job is None, f"this test leaves its thread inside of {job}: call leave_job()"
    if request.node.get_closest_marker("interrupts"):
        return
    request.node.funcargs.clear()  # pytest itself would hold the fixtures' values a little longer
    left = resources.left()
    assert not left, "left open by this test:\n" + "\n".join(left)


@pytest.fixture(scope="session")
def preloaded_processes(pytestconfig: pytest.Config) -> Iterator[None]:
    """Lets this process fork commands, masters and Python that have done their imports."""
    preloaded.start(getattr(pytestconfig, "workerinput", {}).get("forkq_preloaded"))
    yield
    preloaded.close()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    """A running server, TCP and Unix socket, shared by the tests of one xdist worker."""
    server = Server(tcp=True).start()
    yield server
    server.close()


@pytest.fixture
def redis_server(shared_server: Server) -> Iterator[Server]:
    """The shared server, whose data has just been flushed: what another test has left in a queue
    must not run in the tree of this one."""
    shared_server.flush()
    yield shared_server
    shared_server.close_clients()


@pytest.fixture
def redis(redis_server: Server) -> Redis:
    """A client of the shared server."""
    return redis_server.client()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A running server with AOF for one test alone, which may stop, kill, pause or restart it."""
    server = Server(tcp=True, aof=True).start()
    yield server
    server.close()


@pytest.fixture
def tree() -> Iterator[StartTree]:
    """Starts forkq as a user does: `tree(server, app=..., args=...)` returns a ForkqTree."""
    trees = StartTree()
    yield trees
    trees.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A failed test shows what its trees have logged. A failure that comes once in a thousand runs
    has no other witness."""
    report: pytest.TestReport = yield
    trees = getattr(item, "funcargs", {}).get("tree")
    if call.when == "call" and report.failed and isinstance(trees, StartTree):
        report.sections.extend(trees.logs())
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    return MixedScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None
