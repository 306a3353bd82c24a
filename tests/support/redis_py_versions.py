"""Runs tests with each redis-py that pyproject.toml allows, from the oldest to the newest.

``python -m tests.support.redis_py_versions [pytest arguments]`` runs the contract test, or what the
arguments name. Each version has an environment of its own under .venvs; all else it takes from the
one that runs this.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.documents import ROOT

CONTRACT: Final = "tests/unit/store/test_redis_py.py"
# What pip is asked for. The first line has the lowest versions that pyproject.toml allows.
VERSIONS: Final[tuple[tuple[str, ...], ...]] = (
    ("redis==5.2.0", "hiredis==3.2.0"),
    ("redis==5.3.*",),
    ("redis==6.0.*",),
    ("redis==6.4.*",),
    ("redis==7.0.*",),
    ("redis==7.4.*",),
    ("redis==8.0.*",),
    ("redis==8.*",),
)


class NotInstalled(Exception):
    """pip could not install a version; the message is what pip said."""


def run(requirements: Sequence[str], arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The end of pytest with these ``arguments`` and these packages. Raises NotInstalled."""
    python = _environment(requirements)
    command = [str(python), "-m", "pytest", "-q", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _environment(requirements: Sequence[str]) -> Path:
    """The interpreter of an environment that has ``requirements``, and all packages of this one."""
    name = "-".join(each.replace("==", "-") for each in requirements).replace(".*", "")
    folder = ROOT / ".venvs" / f"{name}-py{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    done = folder / ".made"
    if not done.exists():
        venv.create(folder, clear=True)
        _install(python, requirements)
        done.touch()
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    text = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (own / "all_else.pth").write_text(text)
    return python


def _install(python: Path, requirements: Sequence[str]) -> None:
    options = ["--disable-pip-version-check", "--python", str(python), "install", "-q"]
    command = [sys.executable, "-m", "pip", *options, *requirements, "hiredis"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise NotInstalled(found.stderr)


def main(arguments: Sequence[str]) -> int:
    """Runs pytest with each version, and returns 1 if one of them has failed."""
    failed = []
    for requirements in VERSIONS:
        found = run(requirements, arguments or [CONTRACT])
        sys.stdout.write(f"== {' '.join(requirements)}\n{found.stdout[-3000:]}{found.stderr}")
        sys.stdout.flush()
        if found.returncode:
            failed.append(requirements[0])
    sys.stdout.write(f"Failed with: {', '.join(failed)}\n" if failed else "Passed with each.\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
