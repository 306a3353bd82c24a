"""What the master sends to systemd."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkq.master import systemd
from forkq.master.systemd import SystemdNotifier
from tests.support.recorded_log import RecordedLog

ROOT = Path(__file__).parents[3]


class Systemd:
    """The socket on which systemd receives the messages."""

    def __init__(self, path: Path) -> None:
        self.environ = {"NOTIFY_SOCKET": str(path)}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def received(self) -> list[str]:
        """The lines of the messages that have come since the last call."""
        lines: list[str] = []
        while True:
            try:
                lines += self._socket.recv(65536).decode().splitlines()
            except BlockingIOError:
                return lines

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


class MovedClock:
    """The monotonic clock that `systemd.py` reads; the test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Systemd]:
    receiver = Systemd(tmp_path / "notify")
    yield receiver
    receiver.close()


@pytest.fixture
def notifier(receiver: Systemd) -> Iterator[SystemdNotifier]:
    notifier = SystemdNotifier(receiver.environ, RecordedLog())
    yield notifier
    assert notifier._socket is not None
    notifier._socket.close()


def test_a_boot_is_extended_before_the_last_extension_is_over(
    receiver: Systemd, notifier: SystemdNotifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child may boot for longer than the unit's TimeoutStartSec=: `boot_timeout` is its limit."""
    clock = MovedClock()
    monkeypatch.setattr(systemd, "time", clock)
    start, end = clock.now, 0.0
    for second in range(301):
        clock.now = start + second
        notifier.booting()
        for line in receiver.received():
            name, _, value = line.partition("=")
            assert name == "EXTEND_TIMEOUT_USEC"
            end = clock.now + int(value) / 1e6
        assert end >= clock.now + 20, "a turn of the loop may be late"
    assert end <= clock.now + 30, "a master that hangs is ended by systemd"


def test_an_extension_is_not_sent_in_each_turn_of_the_loop(
    receiver: Systemd, notifier: SystemdNotifier
) -> None:
    for _ in range(1000):
        notifier.booting()
    assert len(receiver.received()) == 1


@pytest.mark.parametrize("unit", ["forkq.service", "forkq@.service"])
def test_the_first_extension_is_sent_before_the_units_own_limit(unit: str) -> None:
    """After TimeoutStartSec= it would be too late."""
    text = (ROOT / "systemd" / unit).read_text()
    (limit,) = [line for line in text.splitlines() if line.startswith("TimeoutStartSec=")]
    assert int(limit.partition("=")[2]) > systemd._EXTEND_EVERY


def test_without_systemd_nothing_is_sent() -> None:
    notifier = SystemdNotifier({}, RecordedLog())
    notifier.booting()
    assert notifier.descriptors() == []
