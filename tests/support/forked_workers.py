"""The workers of pytest-xdist, forked from one process that has imported all tests.

Each of them would import pytest, its plugins and five hundred test files, which takes longer than
the collection itself.
"""

from __future__ import annotations

import gc
import importlib
import os
import shlex
import signal
import socket
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import pytest
from _pytest.config import _prepareconfig

from . import preloaded
from .preloading import accept, leave

if TYPE_CHECKING:
    import subprocess

TESTS: Final = Path(__file__).resolve().parents[1]
_WORKER: Final = str(Path(__file__).with_name("worker.py"))


def start(config: pytest.Config) -> subprocess.Popen[bytes]:
    """Starts the process that imports and forks, and has xdist take its workers from there."""
    program = [sys.executable, "-m", __name__]
    source, address = preloaded.listening(program, [])
    python = shlex.join([sys.executable, "-I", "-S", _WORKER, address])
    config.option.tx = [f"popen//python={python}" for _ in config.option.tx]
    return source


def main() -> None:
    """Returns in each worker, whose streams and program are set then."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    _import_tests()
    gc.freeze()
    assert threading.active_count() == 1, "a fork has no threads but its own"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the workers
    connection = accept(listener)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program, descriptors, _, _ = socket.recv_fds(connection, 1000, 3)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = ["-c"]
    sys.modules["__main__"] = ModuleType("__main__")
    exec(program, vars(sys.modules["__main__"]))  # noqa: S102 - xdist would give it to python -c
    leave(0)


def _import_tests() -> None:
    """Imports each test file as the collection does, with its assertions rewritten. What cannot be
    imported is left to the collection, which reports it."""
    config = _prepareconfig(["--capture=no"])
    importlib.import_module("tests.conftest").prepare_process()
    properties = importlib.import_module("tests.support.properties")  # before the properties
    for path in sorted((*TESTS.rglob("conftest.py"), *TESTS.rglob("test_*.py"))):
        with suppress(Exception, pytest.skip.Exception), warnings.catch_warnings():
            warnings.simplefilter("error")
            importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))
    properties.warm_up()
    config._ensure_unconfigure()


if __name__ == "__main__":
    main()
