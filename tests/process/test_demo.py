"""`forkq demo` as a person or a CI job runs it: it counts right, and leaves no process behind."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image
from redis import Redis

import forkq
from tests.support import bound
from tests.support.demo_app import Account, PushedJob
from tests.support.server import Server
from tests.support.tree import CHECKOUT, FORKQ, all_processes

# Two demos at once on a small machine would measure each other.
pytestmark = pytest.mark.xdist_group("demo")


def _environment(temporary: str, extra: Mapping[str, str]) -> dict[str, str]:
    """The tester's, with settings for another forkq that the demo must not listen to."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FORKQ_DEMO")}
    foreign = {"REDIS_URL": "redis://nowhere.invalid:1/9", "FORKQ_TAG": "another"}
    return {**inherited, **foreign, "TMPDIR": temporary, **extra}


@contextmanager
def _demo(tmp_path: Path, **extra: str) -> Iterator[subprocess.Popen[str]]:
    """A running demo in `tmp_path`, of which nothing may be left; what is, is ended."""
    # Not below tmp_path, which is too deep for a Unix socket.
    temporary = tempfile.mkdtemp(prefix="forkq-test-")
    process = subprocess.Popen(
        bound.command([*FORKQ, "demo"]),
        cwd=tmp_path,
        env=_environment(temporary, extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
        assert not list(Path(temporary).iterdir())
        assert not _processes(tmp_path)
    finally:
        process.kill()
        for left in _processes(tmp_path):
            left.kill()
        process.communicate()
        shutil.rmtree(temporary)


def _run(tmp_path: Path, **extra: str) -> tuple[int, str]:
    with _demo(tmp_path, **extra) as demo:
        output, _ = demo.communicate(timeout=240)
        return demo.returncode, output


def _processes(tmp_path: Path) -> list[psutil.Process]:
    """What of a demo's tree still lives: `tmp_path` is in its arguments, or where it works."""
    found = []
    for process in all_processes():
        try:
            ours = any(str(tmp_path) in argument for argument in process.cmdline())
            ours = ours or Path(process.cwd()).is_relative_to(tmp_path)
            if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _results(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "demo-results").iterdir()
    return folder


def _summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_bytes())
    return found


def _input(tmp_path: Path, pictures: int) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    draw = random.Random(7)
    for number in range(pictures):
        size = (draw.randint(1100, 1400), 1000)
        Image.effect_mandelbrot(size, (-2, -1.2, 0.6, 1.2), 60).save(folder / f"set {number}.png")
    (folder / "prices.csv").write_text("item,price\nrope,2.5\nnet,4.5\nrope,nan\n")
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, Path]:
    """A whole demo without a terminal, on a folder of one's own with one corrupt picture."""
    tmp_path = tmp_path_factory.mktemp("demo")
    mine = _input(tmp_path, pictures=2)  # more only take longer: 48 thumbnails each
    (mine / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    code, output = _run(tmp_path, FORKQ_DEMO_INPUT=str(mine))
    return code, output, tmp_path


def test_the_summary_agrees_with_what_is_on_disk(finished: tuple[int, str, Path]) -> None:
    code, output, tmp_path = finished
    assert code == 0, output
    folder = _results(tmp_path)
    summary = _summary(folder)
    pushed = {job["jid"]: job for job in summary["pushed"]}
    on_disk = {jid for jid, job in pushed.items() if (folder / job["result"]).is_file()}
    assert set(summary["done"]) == on_disk
    assert set(summary["dead"]) == pushed.keys() - on_disk
    assert not summary["lost"]
    assert not summary["waiting"]
    said = re.search(r"pushed (\d+) = done (\d+) \+ dead (\d+), lost 0", output)
    assert said, output
    assert [int(n) for n in said.groups()] == [len(pushed), len(on_disk), len(summary["dead"])]


def test_results_are_real(finished: tuple[int, str, Path]) -> None:
    folder = _results(finished[2])
    thumbnails = list(folder.glob("thumbnails/*/*.jpg"))
    assert thumbnails
    for path in thumbnails:
        with Image.open(path) as picture:
            assert max(picture.size) == int(path.stem)
    totals = json.loads((folder / "totals/prices.csv.json").read_bytes())
    assert totals["rows"] == 3
    assert totals["columns"]["price"]["sum"] == 7.0
    assert "thumbnails/" in (folder / "index.html").read_text()


def test_flaky_scheduled_and_killed_jobs_ran(finished: tuple[int, str, Path]) -> None:
    folder = _results(finished[2])
    summary = _summary(folder)
    journal = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    runs = {job["jid"]: [e for e in journal if e["jid"] == job["jid"]] for job in summary["pushed"]}
    flaky = next(job["jid"] for job in summary["pushed"] if job["kind"] == "Announce")
    assert [event["what"] for event in runs[flaky]] == ["began", "failed", "began", "done"]
    assert (folder / "index.html").is_file()
    assert summary["recovered"], "the killed child had jobs in hand"
    for jid in summary["recovered"]:
        begun = [event["pid"] for event in runs[jid] if event["what"] == "began"]
        assert summary["killed"] in begun or len(begun) == 1
        assert begun[-1] != summary["killed"]


def test_a_corrupt_picture_is_a_job_that_dies(finished: tuple[int, str, Path]) -> None:
    _, output, tmp_path = finished
    summary = _summary(_results(tmp_path))
    dead = {job["source"] for job in summary["pushed"] if job["jid"] in summary["dead"]}
    assert {Path(source).name for source in dead} == {"broken.png", "torn.jpg"}
    assert "UnidentifiedImageError" in output


def test_without_a_terminal_there_are_no_control_codes(finished: tuple[int, str, Path]) -> None:
    assert "\x1b" not in finished[1]
    assert "\r" not in finished[1]


@pytest.mark.parametrize(
    ("number", "wait_for"),
    [
        (signal.SIGINT, "they make"),
        (signal.SIGINT, "SIGKILL"),
        (signal.SIGTERM, "Pushed"),
    ],
)
def test_an_interrupt_stops_the_tree(tmp_path: Path, number: signal.Signals, wait_for: str) -> None:
    """While it boots, while it works, and while a child is being replaced."""
    mine = _input(tmp_path, pictures=1)
    with _demo(tmp_path, FORKQ_DEMO_INPUT=str(mine)) as demo:
        assert demo.stdout is not None
        said = ""
        while wait_for not in said:
            line = demo.stdout.readline()
            assert line, said
            said += line
        demo.send_signal(number)
        rest, _ = demo.communicate(timeout=120)
        assert demo.returncode == 130, said + rest
    assert "lost 0" in rest or "nothing had been started" in rest


def test_a_bad_input_folder_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    code, output = _run(tmp_path, FORKQ_DEMO_INPUT=str(tmp_path / "mine"))
    assert code == 1
    assert output.startswith(f"demo: FORKQ_DEMO_INPUT={tmp_path / 'mine'}: there is no such folder")
    assert "Traceback" not in output
    assert not (tmp_path / "demo-results").exists()


def test_without_its_packages_the_demo_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['PIL'] = None\n")
    code, output = _run(tmp_path, PYTHONPATH=str(tmp_path))
    assert code == 1
    assert "Pillow" in output
    assert "or: pip install Pillow" in output
    assert "Traceback" not in output


def test_an_installed_package_says_where_the_demo_is(tmp_path: Path) -> None:
    """The wheel has no examples."""
    shutil.copytree(CHECKOUT / "forkq", tmp_path / "forkq")
    result = subprocess.run(
        [sys.executable, "-m", "forkq", "demo"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert result.returncode == 1
    assert "examples/demo" in result.stderr
    assert "make demo" in result.stderr


def test_a_lost_job_is_found(redis_server: Server, redis: Redis, tmp_path: Path) -> None:
    """The report assumes nothing: a job that is neither in Redis nor on disk is lost."""
    jobs = {jid: PushedJob(jid, "Thumbnail", "a.png", f"{jid}.jpg") for jid in ("a", "b", "c", "d")}
    (tmp_path / "a.jpg").touch()
    dead = {"class": "Thumbnail", "jid": "b", "error_class": "OSError", "error_message": "torn"}
    redis.zadd("dead", {json.dumps(dead): 1.0})
    redis.sadd("queues", "pictures")
    redis.hset("{queue:pictures}:inflight", "x/1", json.dumps({"class": "Thumbnail", "jid": "c"}))
    client = forkq.configure(redis_server.url, environ={})
    account = Account(list(jobs.values()), tmp_path)
    client.close()
    assert account.done == [jobs["a"]]
    assert account.dead == {jobs["b"]: "OSError: torn"}
    assert account.waiting == [jobs["c"]]
    assert account.lost == [jobs["d"]]
    assert account.verdict() == "pushed 4 = done 1 + dead 1 + waiting 1, lost 1"
    assert account.exit_code() == 1
