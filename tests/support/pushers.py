"""Processes that push jobs while others are killed, and they with them."""

from __future__ import annotations

import os
from collections.abc import Callable


def push_all(fork: Callable[[int], int], pushers: int) -> None:
    """Pushes by so many processes. ``fork`` starts the one with a number, and returns its pid. One
    that was killed goes on in another."""
    running = {fork(number): number for number in range(pushers)}
    while running:
        pid, status = os.wait()
        number = running.pop(pid)
        if status:
            running[fork(number)] = number
