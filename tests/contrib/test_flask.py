"""Flask: contexts, configuration and commands."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app, g
from redis import Redis

import forkq
from examples.flask import guestbook
from forkq import default_client, middleware, testing
from forkq.config.load import load
from forkq.contrib.flask import Forkq
from forkq.errors import ConfigError
from tests.support.server import Server
from tests.support.tree import CHECKOUT, ForkqTree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("clean_process")


@pytest.fixture(autouse=True)
def no_app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No app of another test, and no forkq.toml or address of the tester."""
    monkeypatch.setattr("forkq.contrib.flask._apps", [])
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("FORKQ", "REDIS"))]:
        monkeypatch.delenv(name)


def make_app(name: str = "shop", **config: Any) -> Flask:
    app = Flask(name)
    app.config.update(config)
    return app


def test_a_job_runs_in_the_context_of_the_app() -> None:
    app = make_app(GREETING="hello")
    ended: list[object] = []
    app.teardown_appcontext(ended.append)
    Forkq(app)
    assert middleware.server.run({}, lambda: current_app.config["GREETING"]) == "hello"
    assert ended == [None]


def test_each_job_has_a_context_of_its_own_which_hears_of_its_failure() -> None:
    app = make_app()
    ended: list[BaseException | None] = []
    app.teardown_appcontext(ended.append)
    Forkq(app)

    def job() -> None:
        assert "seen" not in g
        g.seen = True
        raise forkq.Shutdown

    for _ in range(2):
        with pytest.raises(forkq.Shutdown):
            middleware.server.run({}, job)
    assert [type(error) for error in ended] == [forkq.Shutdown] * 2


def test_the_context_is_there_in_the_apps_own_middleware_and_hooks() -> None:
    names: list[str] = []

    @middleware.server.append
    def own(job: dict[str, Any], call: Any) -> Any:
        names.append(current_app.name)
        return call()

    class Hooked(forkq.Job, name="contrib.flask.Hooked"):
        def perform(self) -> None:
            raise ZeroDivisionError

        def retry_in(self, count: int, error: BaseException, job: dict[str, Any]) -> int:
            names.append(current_app.name)
            return 9

        def retries_exhausted(self, job: dict[str, Any], error: BaseException) -> None:
            names.append(current_app.name)

    forkq.on_death(lambda job, error: names.append(current_app.name))
    forkq.on_error(lambda error, context: names.append(current_app.name))
    Forkq(make_app())
    with testing.fake() as jobs:
        Hooked.set(retry=1).perform_async()
        jobs.drain(check=False)
    (dead,) = jobs.dead
    assert dead.payload["error_class"] == "ZeroDivisionError"
    assert names == ["shop"] * 7  # both runs, both hooks, one death, two errors


def test_the_factory_called_last_gives_the_context() -> None:
    """As in tests, where each makes an app."""
    extension = Forkq()
    for name in ("one", "two"):
        extension.init_app(make_app(name))
    assert middleware.server.run({}, lambda: current_app.name) == "two"
    assert len(middleware.server) == 1


def test_the_config_of_the_app_is_forkqs(redis: Redis, redis_server: Server) -> None:
    def configured() -> Any:
        return load(None, {}, {}, Path.cwd())

    Forkq(make_app(FORKQ={"forkq": {"tag": "shop", "labels": ("a",), "timeout": None}}))
    assert (configured().tag, configured().timeout, configured().labels) == ("shop", 25.0, ("a",))
    assert str(configured().origin("forkq.tag")) == "FORKQ in app.config: forkq.tag"
    Forkq(make_app(FORKQ={"redis": {"prefix": "q"}}, FORKQ_REDIS=redis_server.url))
    forkq.job(name="contrib.flask.Pushed")(lambda: None).perform_async()
    assert default_client.default().keys.prefix == "q"
    assert redis.exists("qqueue:default")


def test_without_a_key_the_file_counts_and_both_are_refused() -> None:
    Path("forkq.toml").write_text('[forkq]\ntag = "file"\n')
    Forkq(make_app())
    assert load(None, {}, {}, Path.cwd()).tag == "file"
    with pytest.raises(ConfigError, match=r"both FORKQ in app.config and .*forkq.toml"):
        Forkq(make_app(FORKQ_REDIS="redis://"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"FORKQ": {"redis": {"ulr": "x"}}}, r"FORKQ in app.config: redis.ulr: unknown key.*url"),
        ({"FORKQ": {"forkq": {"timeout": "soon"}}}, "forkq.timeout: expected a number"),
        ({"FORKQ": {"forkq": {"labels": [object()]}}}, r"forkq.labels\[0\]: an object is no value"),
        ({"FORKQ": "redis://"}, "expected a dict of tables"),
        ({"FORKQ": {"redis": "redis://"}}, "redis: expected a table"),
        ({"FORKQ": {"redis": 7}, "FORKQ_REDIS": "redis://"}, "redis: expected a table"),
        ({"FORKQ_URL": "redis://"}, "FORKQ_URL in app.config: there is no such key"),
        ({"FORKQ_REDIS": "http://"}, "redis.url"),
    ],
)
def test_what_is_wrong_is_refused_when_the_app_is_made(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Forkq(make_app(**config))


def test_a_child_of_another_configuration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`forkq start` does not read app.config: web processes would push elsewhere."""
    server = load(None, {}, {}, Path.cwd())
    monkeypatch.setattr(default_client, "_server_config", server)
    Forkq(make_app(FORKQ_REDIS=server.redis.url))
    with pytest.raises(ConfigError, match="flask forkq start"):
        Forkq(make_app(FORKQ_REDIS="redis://elsewhere"))
    flagged = load(None, {"redis": "redis://other"}, {}, Path.cwd())
    monkeypatch.setattr(default_client, "_server_config", flagged)
    Forkq(make_app(FORKQ_REDIS="redis://elsewhere"))


class FlaskTree(ForkqTree):
    """Started by ``flask forkq start``, as README.md of the example has it."""

    program = (sys.executable, "-m", "flask", "--app", "guestbook", "forkq")


@pytest.fixture
def example(redis: Redis, redis_server: Server) -> Iterator[FlaskTree]:
    """The running example, in a folder of its own."""
    tree = FlaskTree(env={"FLASK_FORKQ_REDIS": redis_server.url, "FLASK_DATABASE": "book.db"})
    shutil.copytree(CHECKOUT / "examples/flask/guestbook", tree.cwd / "guestbook")
    yield tree
    tree.close()


def test_the_example_runs_and_restarts_with_new_code(
    example: FlaskTree, redis_server: Server
) -> None:
    """The web app pushes, the tree runs the job in the app's context. Broken code is rolled back
    with its reason, and new code is read in a fresh interpreter."""
    example.start().wait_ready()
    database = str(example.cwd / "book.db")
    app = guestbook.create_app({"FORKQ_REDIS": redis_server.url, "DATABASE": database})
    web, jobs = app.test_client(), example.cwd / "guestbook" / "jobs.py"

    def thanked(name: str) -> str:
        assert web.post("/entries", json={"name": name, "text": "hi"}).status_code == 201

        def answer() -> Any:
            [entry] = [each for each in web.get("/entries").json or [] if each["name"] == name]
            return entry["answer"]

        return str(wait_until(answer, what="an answer"))

    assert thanked("Ada") == "Thank you, Ada!"
    code = jobs.read_text()
    jobs.write_text("this is no Python")
    example.signal(signal.SIGUSR2)
    example.wait_log("(?s)called off.*SyntaxError")
    jobs.write_text(code.replace("Thank you", "Many thanks"))
    assert example.run("restart", "--wait").returncode == 0, example.log_text()
    assert thanked("Grace") == "Many thanks, Grace!"
    assert "guestbook" in example.run("status").stdout
    stopped = example.run("stop")
    assert (stopped.returncode, example.wait()) == (0, 0)


@pytest.mark.parametrize(
    ("app", "message"),
    [
        ("raise RuntimeError('no key')", "RuntimeError: no key"),
        ("import os; os._exit(7)", "the import of the Flask app ended the process"),
        ("from flask import Flask; app = Flask('bare')", "the Flask app bare has no forkq"),
        ("", "Failed to find Flask application"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_one_clear_error(app: str, message: str) -> None:
    Path("guestbook.py").write_text(app)
    done = subprocess.run(
        [*FlaskTree.program, "status"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("forkq: ")
    assert message in done.stderr
