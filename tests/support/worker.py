"""What pytest-xdist starts as one of its workers: `python worker.py ADDRESS -u -c PROGRAM`.

It hands its standard streams to a process that forked_workers.py has forked, and ends after it.
"""

from __future__ import annotations

import os
import socket
import sys

address, program = sys.argv[1], sys.argv[-1]
with socket.socket(socket.AF_UNIX) as source:
    source.connect(f"\0{address}")
    socket.send_fds(source, [program.encode()], [0, 1, 2])
    empty = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # xdist waits for the end of both
        os.dup2(empty, stream)
    source.recv(1)  # nothing comes until all that have the other end are gone
