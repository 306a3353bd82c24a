"""The parts of the bench work: cells of forkq, the proxy, the record, tables, plots."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.compare import coroutines
from tests.bench.compare.cell import Failed, Stage
from tests.bench.compare.counts import Counts
from tests.bench.compare.environments import Found, prepare
from tests.bench.compare.peers import APPS, CHECKOUT, COROUTINES, FORKQ, PEERS, Peer
from tests.bench.compare.plan import NAP, NOOP, Cell, plan
from tests.bench.compare.record import Record
from tests.bench.compare.run import Options, run
from tests.bench.compare.tables import TABLES, filled
from tests.bench.delay import REMEDY, away, has_compiler
from tests.support.server import Server
from tests.support.waiting import wait_until


@pytest.fixture
def server() -> Iterator[Server]:
    """A server with a port, as the bench has."""
    server = Server(tcp=True).start()
    yield server
    server.close()


def _record() -> Record:
    """forkq beside huey and rq, in two rounds, on two networks; rq fails once."""
    record = Record(
        machine={
            "processors": 2,
            "system": "Linux",
            "python": "3",
            "server": "Redis",
            "load_before": 1.0,
        }
    )
    record.peers["huey"] = {"version": "3.5", "missing": "", "settings": "threads"}
    record.peers["saq"] = {"version": "", "missing": "no wheel", "settings": ""}
    rates = {FORKQ: 900.0, "huey": 100.0, "rq": 10.0}
    for number, cell in enumerate(plan(["huey", "rq"], [NOOP, NAP], [0.0, 1.2], 10, 2)):
        if cell == Cell(0, NOOP, 10, 0.0, "rq"):
            record.add(cell, failed="it\nprinted nothing")
        else:
            measured = {"worker_us": 2.0, "redis_us": 1.0, "load": 1.0, "seconds": 1.0}
            record.add(cell, rate=rates[cell.peer] + number, **measured)
    rows = [("forkq-async", 900.0), ("taskiq-async", 100.0), ("docket", 10.0)]
    record.coroutines = [
        {"round": 0, "kind": kind, "peer": peer, "rate": rate, "worker_us": 70.0, "p99": 1.5}
        for kind in ("noop", "push")
        for peer, rate in rows
    ]
    record.coroutines += [
        {"round": 0, "kind": "hold", "peer": "forkq-async", "mb": 5.2, "whole_mb": 33.0},
        {"round": 0, "kind": "wait", "peer": "docket", "failed": "it\nprinted nothing"},
    ]
    record.ceilings = [{"network": 1.2, "ping_ms": 1.31, "requests": 800_000.0}]
    return record


def test_each_peer_stands_beside_a_cell_of_forkq() -> None:
    cells = list(plan(["sidekiq", "huey", "rq"], [NOOP, NAP], [0.0, 0.7], 10, 2))
    for place, cell in enumerate(cells):
        near = [one.peer for one in cells[max(0, place - 1) : place + 2]]
        assert cell.peer == FORKQ or FORKQ in near
    assert {cell.peer for cell in cells if cell.threads == 25} == {FORKQ, "sidekiq"}
    assert {cell.network for cell in cells if cell.kind == NAP} == {0.0}


def test_ratios_are_of_neighbours() -> None:
    record = _record()
    found = record.ratios("huey", kind=NOOP, network=0.0)
    first = record.rows(FORKQ, kind=NOOP, network=0.0)[0]["rate"]
    assert found[0] == first / record.rows("huey", kind=NOOP, network=0.0)[0]["rate"]
    assert len(found) == 2
    assert len(record.ratios("rq", kind=NOOP, network=0.0)) == 1  # the other one failed


def test_a_record_comes_back_whole(tmp_path: Path) -> None:
    record = _record()
    record.save(tmp_path / "sub" / "record.json")
    assert Record.load(tmp_path / "sub" / "record.json") == record


def test_a_part_alone_leaves_the_others_in_the_record(server: Server, tmp_path: Path) -> None:
    output = tmp_path / "record.json"
    record = _record()
    record.children = [{"children": 1}]
    record.save(output)
    options = Options([], [], [], 0, 0, 10, 1, 1, ["latency"], output)
    run(options)
    assert Record.load(output).cells == record.cells
    assert Record.load(output).children == record.children


def test_tables_show_what_was_measured_and_what_was_not() -> None:
    record = _record()
    text = "".join(f"<!-- figures: {name} -->old<!-- end of figures -->\n" for name in TABLES)
    text = filled(text.replace("-->old", "-->\nold"), record)
    assert "old" not in text
    assert "| huey | 109 (101 to 117) |" in text
    assert "left out: no wheel" in text
    assert "- rq, noop, same machine: `it printed nothing`" in text
    assert "| forkq-async | 900 | none | none | none | 900 | 1.5 | 33 | 5.2 |" in text
    assert "| taskiq-async | 9 | none | 9 | 70 | none | none |" in text
    assert "| docket | none | none | none | 70 |" in text, "no cell of forkq's is beside it"
    assert "- docket, wait, same machine: `it printed nothing`" in text
    assert filled(text, record) == text


def test_plots_have_a_line_for_each_peer(tmp_path: Path) -> None:
    """In a process of its own: matplotlib keeps its fonts open."""
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed: pip install 'matplotlib>=3.8'")
    record = _record()
    record.cells = [row for row in record.cells if row["kind"] == NOOP]
    record.save(tmp_path / "record.json")
    command = [sys.executable, "-m", "tests.bench.compare.plots", str(tmp_path / "record.json")]
    subprocess.run([*command, str(tmp_path)], cwd=CHECKOUT, check=True)
    text = (tmp_path / "bench-noop.svg").read_text()
    assert all(f">{name}</text>" in text for name in (FORKQ, "huey", "rq"))
    assert ">celery</text>" not in text
    assert not (tmp_path / "bench-nap.svg").exists()


def test_jobs_count_themselves_in_all_processes(tmp_path: Path) -> None:
    counts = Counts(tmp_path / "counts")
    code = "import bench_jobs, os; bench_jobs.count(); os.fork(); bench_jobs.count()"
    env = {**os.environ, "BENCH_COUNTS": str(counts.path), "PYTHONPATH": str(APPS)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    wait_until(lambda: counts.total() == 3, what="the count of the fork")
    counts.close()


def test_a_cell_of_forkq(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.bench.compare.cell.START", 120)  # on a loaded machine
    stage = Stage(server, PEERS[FORKQ], prepare(PEERS[FORKQ]), 2)
    jobs = 30_000  # fewer may all have run between two looks at the counts
    keys = stage.push(NOOP, jobs)
    found = stage.measure(keys, jobs, server.url, 20)
    assert found.rate > 0
    with server.client() as client:
        assert client.llen("queue:default") < jobs


def test_cells_of_coroutines(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment of the tests. A rate, pushes, memory, and a request by HTTP."""
    monkeypatch.setattr("tests.bench.compare.cell.START", 120)
    monkeypatch.setattr(coroutines, "JOBS", {"noop": 5000, "push": 640})
    peer = COROUTINES[coroutines.OURS]
    cells = coroutines.Cells(server, {peer.name: Found(Path(sys.executable).parent)}, {})
    assert cells.measure(peer, "noop")["rate"] > 0
    pushed = cells.measure(peer, "push")
    assert 0 < pushed["p50"] <= pushed["p99"]
    assert pushed["rate"] > 0
    held = cells.measure(peer, "hold")
    assert 0 < held["mb"] < held["whole_mb"]


def test_the_server_of_http_answers() -> None:
    with coroutines._surroundings() as env:
        began = time.monotonic()
        with urllib.request.urlopen(env["BENCH_HTTP"]) as answer:  # noqa: S310 - our own server
            assert answer.read() == b"ok"
        assert time.monotonic() - began >= 0.1


def test_a_program_that_does_not_start_is_a_failure_with_its_words(server: Server) -> None:
    peer = Peer("sh", "ls /no-such-folder")
    with pytest.raises(Failed, match="no-such-folder"):
        Stage(server, peer, prepare(PEERS[FORKQ]), 2).measure([], 1000, server.url, 1)


def test_a_sidekiq_that_is_not_there_is_left_out_with_the_reason() -> None:
    peer = Peer("sidekiq", "ruby -C /tmp /no/such/sidekiq -r x", push="ruby x")
    assert "SIDEKIQ_PATH" in prepare(peer).missing


@pytest.mark.skipif(not has_compiler(), reason=REMEDY)
def test_the_proxy_delays_each_way(server: Server) -> None:
    with away(server, 0.02) as front, front.client() as client:
        client.ping()
        trips = []
        for _ in range(5):
            started = time.monotonic()
            client.ping()
            trips.append(time.monotonic() - started)
    assert statistics.median(trips) >= 0.02
