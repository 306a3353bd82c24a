"""Commands in this process, as a shell would run them."""

from __future__ import annotations

import pytest

from forkq import default_client
from forkq.cli.main import _run


class Shell:
    """Runs commands; ``out`` and ``err`` are what the latest has printed."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self.out = self.err = ""

    def __call__(self, line: str, *more: str) -> int:
        default = default_client._default
        if default is not None:
            default.close()
        code = _run([*line.split(), *more])
        self.out, self.err = self._capfd.readouterr()
        return code
