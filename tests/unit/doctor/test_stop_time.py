"""The time-out against that of systemd and Kubernetes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from forkq.doctor.finding import examine
from forkq.doctor.stop_time import kubernetes, systemd
from forkq.doctor.unit_file import of_file, own_unit, seconds_of
from tests.support.tree import CHECKOUT
from tests.unit.doctor.shared import config

IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def unit(folder: Path, *lines: str) -> Path:
    file = folder / "forkq.service"
    file.write_text("\n".join(["[Unit]", "TimeoutStopSec=1", "[Service]", *lines, ""]))
    return file


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("35", 35), ("1min 30s", 90), ("500ms", 0.5), ("2h", 7200), ("1min30s", 90), ("1.5 s", 1.5),
     ("infinity", math.inf), ("0", math.inf)],
)  # fmt: skip
def test_time_spans_of_systemd(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "3 parsecs", "-1", "5s;"])
def test_what_is_no_time_span_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="no time span"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("lines", "level"),
    [
        (["TimeoutStopSec=30"], "ok"),
        (["TimeoutStopSec=29"], "fail"),
        (["TimeoutStopSec=29", "Type=notify"], "ok"),
        (["TimeoutStopSec=29", "Type=exec", "NotifyAccess=main"], "ok"),
        (["TimeoutStopSec=29", "Type=simple", "NotifyAccess=none"], "fail"),
        (["TimeoutSec=10"], "fail"),
        (["TimeoutSec=10", "TimeoutStopSec=31"], "ok"),
        (["TimeoutStopSec=10", "TimeoutStopSec="], "ok"),  # emptied: the default, 90 s
        (["# TimeoutStopSec=10", "; TimeoutStopSec=11"], "ok"),
        (["TimeoutStopSec=10", "[Install]", "TimeoutStopSec=90"], "fail"),
    ],
)
def test_a_unit_file_against_the_time_out(tmp_path: Path, lines: list[str], level: str) -> None:
    found = systemd(config(timeout=25), unit(tmp_path, *lines), {})
    assert found.level == level
    assert level == "ok" or "TimeoutStopSec=30" in found.remedy


def test_drop_ins_come_after_the_unit(tmp_path: Path) -> None:
    file = unit(tmp_path, "TimeoutStopSec=90")
    folder = tmp_path / "forkq.service.d"
    folder.mkdir()
    (folder / "a.conf").write_text("[Service]\nTimeoutStopSec=20\n")
    assert systemd(config(timeout=25), file, {}).level == "fail"
    (folder / "b.conf").write_text("[Service]\nTimeoutStopSec=50\n")
    assert systemd(config(timeout=25), file, {}).level == "ok"


@pytest.mark.parametrize("name", ["forkq.service", "forkq@.service"])
def test_the_units_of_forkq_may_be_extended(name: str) -> None:
    found = of_file(CHECKOUT / "systemd" / name)
    assert (found.seconds, found.can_be_extended) == (35, True)


def test_a_time_that_cannot_be_read_is_a_warning(tmp_path: Path) -> None:
    file = unit(tmp_path, "TimeoutStopSec=soon")
    found = examine("systemd", lambda: systemd(config(), file, {}))
    assert (found.level, found.checked) == ("warn", False)
    assert "'soon'" in found.why


def test_the_unit_that_runs_this_process_is_known_by_its_control_group(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("9:name=systemd:/system.slice/forkq.service\n0::/system.slice/forkq.service\n")
    assert own_unit({"INVOCATION_ID": "x"}, own) == "forkq.service"
    assert own_unit({}, own) is None
    own.write_text("0::/user.slice/user-0.slice/user@0.service/app.slice/run-1.scope\n")
    assert own_unit({"INVOCATION_ID": "x"}, own) is None
    assert own_unit({"INVOCATION_ID": "x"}, tmp_path / "none") is None


def test_outside_of_systemd_and_kubernetes_nothing_is_wrong() -> None:
    assert systemd(config(), None, {}).level == "ok"
    assert kubernetes(config(), None, {}).level == "ok"


@pytest.mark.parametrize(("grace", "level"), [(29.9, "fail"), (30, "ok"), (45, "ok")])
def test_the_grace_period_against_the_time_out(grace: float, level: str) -> None:
    assert kubernetes(config(timeout=25), grace, IN_A_POD).level == level


def test_a_pod_that_does_not_know_its_grace_period_says_so() -> None:
    found = kubernetes(config(), None, IN_A_POD)
    assert (found.level, found.checked) == ("warn", False)
    assert "--grace" in found.remedy
