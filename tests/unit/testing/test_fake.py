"""`fake`, `real` and `refused`: where the pushes of the process go, and what was before."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

import forkq
from forkq import default_client, testing
from forkq.errors import ServerUnavailable
from forkq.store import unserved_queues


@forkq.job(name="Elsewhere")
def elsewhere(number: int) -> None: ...


def push(number: int = 1) -> str:
    return elsewhere.perform_async(number)


def test_a_push_is_recorded_with_its_jid_and_its_whole_payload() -> None:
    class Thumbnail(forkq.Job, name="Thumbnail", queue="images", retry=5):
        def perform(self, path: str, sizes: dict[str, int]) -> None: ...

    with testing.fake() as jobs:
        jid = Thumbnail.set({"custom": [1]}).perform_async("a.png", {"width": 200})
    (job,) = jobs
    assert (job.jid, job.name, job.queue, job.at) == (jid, "Thumbnail", "images", None)
    assert job.args == ["a.png", {"width": 200}]
    stamps = {key: job.payload.pop(key) for key in ("created_at", "enqueued_at")}
    assert all(type(stamp) is float for stamp in stamps.values())
    assert job.payload == {
        "class": "Thumbnail", "args": ["a.png", {"width": 200}], "queue": "images", "retry": 5,
        "jid": jid, "custom": [1],
    }  # fmt: skip


def test_all_ways_of_pushing_come_here() -> None:
    """Also those of a client of one's own, in one round trip or in many."""
    with testing.fake() as jobs:
        push()
        elsewhere.perform_in(60, 2)
        elsewhere.perform_at(4e9, 3)
        elsewhere.perform_bulk([(4,)] * 1001)
        elsewhere.perform_bulk([(5,), (6,)], at=[60, 4e9])
        forkq.Client("redis://127.0.0.1:1/3", prefix="x").push({"class": "HardJob", "args": []})
    assert len(jobs) == 1007
    jobs.enqueued(elsewhere, args=[4], at=None, times=1001)
    jobs.enqueued(elsewhere, at=timedelta(minutes=1), times=2)
    jobs.enqueued(elsewhere, at=4e9, times=2)
    jobs.enqueued("HardJob", times=1)


def test_a_push_is_checked_as_in_production() -> None:
    with testing.fake() as jobs, pytest.raises(forkq.InvalidJob, match="is a set"):
        elsewhere.perform_async({1})  # type: ignore[arg-type]
    assert len(jobs) == 0


def test_client_middleware_changes_and_vetoes() -> None:
    @forkq.middleware.client.append
    def odd_numbers(job, call):  # type: ignore[no-untyped-def]
        job["tenant"] = 7
        return call() if job["args"][0] % 2 else None

    with testing.fake() as jobs:
        assert push(1)
        assert push(2) == ""
    assert [job.payload["tenant"] for job in jobs] == [7]


def test_the_end_restores_what_was_before() -> None:
    with testing.refused():
        with testing.fake() as outer:
            push(1)
            with testing.fake() as inner:
                push(2)
                assert testing.recorded() is inner
            push(3)
            assert testing.recorded() is outer
        with pytest.raises(testing.PushRefused):
            push(4)
    assert [job.args for job in outer] == [[1], [3]]
    with pytest.raises(ServerUnavailable):
        push(5)
    with pytest.raises(AssertionError, match="no pushes are recorded here"):
        testing.enqueued(elsewhere)


def test_an_error_restores_too() -> None:
    with pytest.raises(ZeroDivisionError), testing.fake():
        _ = 1 / 0
    with pytest.raises(ServerUnavailable):
        push()


def test_within_fake_real_pushes_are_possible() -> None:
    with testing.fake() as jobs, testing.real(), pytest.raises(ServerUnavailable):
        push()
    assert len(jobs) == 0


def test_real_pushes_to_one_server_refuse_others() -> None:
    with testing.real("redis://127.0.0.1:1/0"), pytest.raises(ServerUnavailable):
        push()
    with testing.real("redis://127.0.0.1:1/9"), pytest.raises(testing.PushRefused):
        push()


def test_a_refusal_names_the_fixture_and_hides_the_password() -> None:
    client = forkq.Client("redis://me:secret@prod.example.com/0")
    with testing.refused(), pytest.raises(testing.PushRefused) as raised:
        client.push({"class": "X", "args": []})
    assert "redis://me:***@prod.example.com/0" in str(raised.value)
    assert "`forkq_jobs`" in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("mode", [testing.fake, testing.refused])
def test_what_looks_into_redis_or_changes_it_is_refused(mode: object) -> None:
    with mode(), pytest.raises(AssertionError, match="forkq_server"):  # type: ignore[operator]
        forkq.is_alive("0" * 24)


def test_each_call_of_a_decorated_function_has_jobs_of_its_own() -> None:
    @testing.fake()
    def pushes() -> int:
        push()
        return len(testing.recorded())

    assert (pushes(), pushes()) == (1, 1)
    assert pushes.__name__ == "pushes"


def test_a_coroutine_function_is_decorated_until_it_ends() -> None:
    @testing.fake()
    async def pushes() -> list[testing.RecordedJob]:
        await asyncio.sleep(0)
        push()
        await asyncio.to_thread(push, 2)
        return testing.enqueued(elsewhere, times=2)

    assert len(asyncio.run(pushes())) == 2


def test_a_class_is_not_decorated() -> None:
    with pytest.raises(TypeError, match="JobsMixin"):

        @testing.fake()
        class Tests: ...


def test_pushes_of_many_threads_are_all_recorded() -> None:
    with testing.fake() as jobs:
        threads = [threading.Thread(target=lambda: [push(n) for n in range(50)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert len({job.jid for job in jobs}) == 400


def test_an_embedded_server_need_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The forkq.toml of the quick start, as the working directory of the tests has it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "forkq.toml").write_text('[redis]\nurl = "embedded"\n')
    monkeypatch.setattr(default_client, "_default", None)
    with testing.fake() as jobs:
        push()
    assert len(jobs) == 1


def test_nothing_asks_the_server_about_what_is_only_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the search for queues that nothing serves, nor a sentence about localhost."""
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server, testing.fake() as jobs:
        server.setblocking(False)
        forkq.configure(f"redis://127.0.0.1:{server.getsockname()[1]}/0")
        push()
        elsewhere.set(queue="unserved").perform_async(1)
        unserved_queues.finish()
        with pytest.raises(BlockingIOError):
            server.accept()
        monkeypatch.setattr(default_client, "_announced", False)
        forkq.configure(environ={})
        push()
    assert len(jobs) == 3
    assert not caplog.messages


def test_without_pytest_an_app_loads_nothing_of_this_and_pushes_to_redis() -> None:
    """A test that records loads no Redis library either."""
    program = """
import sys
import forkq
assert "forkq.testing" not in sys.modules
from forkq.store.route import is_diverted
with __import__("forkq.testing").testing.fake() as jobs:
    forkq.Client("redis://127.0.0.1:1").push({"class": "X", "args": []})
    assert is_diverted() and len(jobs) == 1
assert not is_diverted()
assert not {"redis", "structlog", "pytest"} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
