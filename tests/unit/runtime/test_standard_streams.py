"""What the app prints, as its reader gets it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from forkq.runtime.standard_streams import print_line_by_line

PRINTS = """
import os, sys
from forkq.runtime.standard_streams import print_line_by_line
print_line_by_line()
print("version", 2)
print("error", 3, file=sys.stderr)
os._exit(0)
"""


@pytest.mark.parametrize("environment", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_each_line_is_one_write_and_none_waits_in_a_buffer(environment: dict[str, str]) -> None:
    """Lines of several processes must not mix, and a killed process must lose none."""
    ours, theirs = socket.socketpair(type=socket.SOCK_DGRAM)  # each message is one write
    with ours, theirs:
        program = [sys.executable, "-c", PRINTS]
        end, environment = theirs.fileno(), {**os.environ, **environment}
        subprocess.run(program, stdout=end, stderr=end, env=environment, check=True)
        ours.setblocking(False)
        assert [ours.recv(100), ours.recv(100)] == [b"version 2\n", b"error 3\n"]
        with pytest.raises(BlockingIOError):
            ours.recv(100)


def test_what_the_app_has_put_in_the_place_of_a_stream_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", object())
    print_line_by_line()
