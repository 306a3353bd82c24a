"""What pytest loads (entry point ``forkq``): no test reaches a real server unless it says so.

docs/testing.md has the fixtures, the marker and the setting for the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from .jobs import RecordedJobs
from .modes import Scope, fake, inline, real, refused
from .stack import modes

if TYPE_CHECKING:
    from .server import ForkqServer, RedisForTests

_SETTING: Final = "forkq_pushes"
_MODES: Final[Mapping[str, Callable[[], Scope[Any]]]] = {
    "refuse": refused,
    "fake": fake,
    "inline": inline,
    "twice": partial(fake, twice=True),
    "real": real,
}
_MARKER: Final = (
    'forkq(mode): what becomes of jobs that this test pushes: "refuse", "fake", "inline", "twice" '
    'or "real"'
)
_scope_of: Final = pytest.StashKey[Scope[Any]]()
_of_session: Final = pytest.StashKey[Scope[Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the setting, for pytest.ini or pyproject.toml."""
    about = "What becomes of jobs that tests push: refuse, fake, inline, twice or real (forkq)"
    parser.addini(_SETTING, about, default="refuse")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Enters the mode of the session: a conftest.py, and what it imports of the app, may push,
    too."""
    if early_config.getini(_SETTING) in _MODES:
        _enter_mode_of_session(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Refuses a wrong setting. pytest would show a traceback of what the earlier hook raises, and
    does not call that one if a conftest.py names this plugin."""
    config.addinivalue_line("markers", _MARKER)
    if _of_session not in config.stash:
        _enter_mode_of_session(config)


def _enter_mode_of_session(config: pytest.Config) -> None:
    mode = config.getini(_SETTING)
    scope = _scope(mode, f"{_SETTING} = {mode!r} in the configuration of pytest")
    scope.__enter__()
    config.stash[_of_session] = scope
    config.add_cleanup(lambda: scope.__exit__(None, None, None))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses a marker with another mode before any test runs."""
    for item in items:
        _mode_of(item)()


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Enters the test's own mode, before any of its fixtures: they may push, too."""
    scope = item.stash[_scope_of] = _mode_of(item)()
    scope.__enter__()
    yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Returns to the mode of the session, after all fixtures of the test."""
    yield
    if scope := item.stash.get(_scope_of, None):
        scope.__exit__(None, None, None)


@pytest.fixture
def forkq_jobs() -> Iterator[RecordedJobs]:
    """The jobs that this test pushes (forkq.testing.RecordedJobs); none leaves the process."""
    mode = modes()[-1]
    if isinstance(mode, RecordedJobs):
        yield mode
        return
    with fake() as jobs:  # the test asked for it while it ran
        yield jobs


@pytest.fixture(scope="session")
def forkq_redis() -> Iterator[RedisForTests]:
    """A Redis for the tests of this process, which ends with them."""
    from .server import RedisForTests  # noqa: PLC0415 - few tests need a server

    with RedisForTests() as redis:
        yield redis


@pytest.fixture
def forkq_server(
    forkq_redis: RedisForTests, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ForkqServer]:
    """An empty Redis that this test pushes to, and `start()` for a master and children on it."""
    from .server import ForkqServer  # noqa: PLC0415 - as above

    monkeypatch.setenv("FORKQ_REDIS", forkq_redis.url)
    with ForkqServer(forkq_redis.url) as server:
        yield server


def _mode_of(item: pytest.Item) -> Callable[[], Scope[Any]]:
    marker = item.get_closest_marker("forkq")
    mode = item.config.getini(_SETTING) if marker is None else _argument(marker)
    if marker is None and "forkq_jobs" in getattr(item, "fixturenames", ()) and mode != "twice":
        return fake
    return lambda: _scope(mode, f"the marker `forkq` of {item.nodeid}")


def _argument(marker: pytest.Mark) -> Any:
    given = [*marker.args, *marker.kwargs.values()]
    return given[0] if len(given) == 1 else given


def _scope(mode: object, where: str) -> Scope[Any]:
    make = _MODES.get(mode) if isinstance(mode, str) else None
    if make is None:
        raise pytest.UsageError(f"{where}: write one of {', '.join(_MODES)}, not {mode!r}")
    return make()
