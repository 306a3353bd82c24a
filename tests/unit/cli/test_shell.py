"""`forkq shell -c`: what the user has typed runs, and fails, as it does with Python itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("command", "code", "ends_with"),
    [
        ("print(forkq.__name__)", 0, "forkq"),
        ("exit(7)", 7, ""),
        ("raise SystemExit('as they say')", 1, "as they say"),
        ("x =", 2, "invalid syntax (<command>, line 1)"),
        ("x = '\\0'; 1/0", 1, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_line_of_the_users(command: str, code: int, ends_with: str, tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "forkq", "shell", "--no-import", "-c", command]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == code
    assert (done.stdout + done.stderr).rstrip().endswith(ends_with)
    assert "site-packages" not in done.stderr, "frames of forkq and click"
