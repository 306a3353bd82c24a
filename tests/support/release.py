"""Makes a release: ``python -m tests.support.release 0.2.0``, or ``make release VERSION=0.2.0``.

Sets the version and the changelog, builds sdist and wheel into dist/, and tries both in clean
environments of each Python. It commits and uploads nothing: it says how.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

from tests.support.documents import ROOT

PYTHONS: Final = ("3.10", "3.11", "3.12", "3.13", "3.14")
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_LINE: Final = re.compile(r'^__version__ = "[^"]*"$', re.MULTILINE)
_UNRELEASED: Final = "## Unreleased\n"
_TRIAL: Final = """
import forkq
@forkq.job(name="Greet")
def greet(name): print("Hello", name)
from forkq import testing
with testing.fake() as jobs:
    greet.perform_async("Ada")
    assert jobs.drain() == 1
print(forkq.__version__)
"""


class CannotRelease(Exception):
    """What must be mended first."""


def checked_version(text: str) -> str:
    """Raises CannotRelease unless it is a version that PEP 440 and SemVer both know."""
    if not _VERSION.fullmatch(text):
        raise CannotRelease(f"{text!r} is no version; write one as 0.2.0 or 0.2.0rc1")
    return text


def with_version(text: str, version: str) -> str:
    """forkq/version.py with that version."""
    changed, count = _LINE.subn(f'__version__ = "{version}"', text)
    if count != 1:
        raise CannotRelease("forkq/version.py has no line with __version__")
    return changed


def with_release(text: str, version: str, day: date) -> str:
    """The changelog, whose section Unreleased becomes that version's; a new one stands above it.
    Raises CannotRelease if there is nothing to release."""
    if f"## {version} " in text:
        raise CannotRelease(f"CHANGELOG.md has a section {version} already")
    _, found, rest = text.partition(_UNRELEASED)
    section = rest.partition("\n## ")[0]
    if not found or not re.search(r"^- ", section, re.MULTILINE):
        raise CannotRelease('CHANGELOG.md has nothing under "Unreleased"')
    return text.replace(_UNRELEASED, f"{_UNRELEASED}\n## {version} - {day}\n", 1)


def run(command: Sequence[str | Path], cwd: Path = ROOT) -> str:
    """Standard output of a command. Raises CannotRelease with what it says if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRelease(f"{' '.join(words)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def built(folder: Path) -> list[Path]:
    """sdist and wheel, the wheel made from the sdist."""
    run([sys.executable, "-m", "build", "--outdir", folder, ROOT])
    return [*folder.glob("*.tar.gz"), *folder.glob("*.whl")]


def tried(python: str, package: Path, version: str) -> None:
    """Installs the package into a new environment, and runs a job. Raises CannotRelease."""
    with tempfile.TemporaryDirectory(prefix="forkq-release-") as name:
        folder = Path(name)
        run([python, "-m", "venv", folder / "venv"], folder)
        own = folder / "venv" / "bin"
        run([own / "python", "-m", "pip", "install", "-qq", package], folder)
        (folder / "trial.py").write_text(_TRIAL)
        printed = run([own / "python", "-c", "import trial"], folder)
        if printed.split() != ["Hello", "Ada", version]:
            raise CannotRelease(f"{package.name} on {python} says {printed!r}")
        run([own / "forkq", "doctor", "--help"], folder)


def pythons() -> dict[str, str]:
    """The interpreters of this machine, by their version."""
    root = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))
    found = {}
    for version in PYTHONS:
        own = sorted(Path(root, "versions").glob(f"{version}.*/bin/python"))
        python = str(own[-1]) if own else shutil.which(f"python{version}")
        if python:
            found[version] = python
    return found


def release(version: str) -> None:
    """All of it. Raises CannotRelease."""
    if run(["git", "status", "--porcelain"]):
        raise CannotRelease("the checkout has changes; commit them first")
    version_file, changelog = ROOT / "forkq" / "version.py", ROOT / "CHANGELOG.md"
    today = date.today()
    texts = {
        version_file: with_version(version_file.read_text(), version),
        changelog: with_release(changelog.read_text(), version, today),
    }
    for path, text in texts.items():
        path.write_text(text)
    folder = ROOT / "dist" / version
    packages = built(folder)
    for name, python in pythons().items():
        for package in packages:
            tried(python, package, version)
            sys.stdout.write(f"Python {name}: {package.name} works\n")
    files = " ".join(str(each.relative_to(ROOT)) for each in packages)
    sys.stdout.write(
        f"now: git commit -am 'forkq {version}' && git tag v{version} && git push --tags\n"
        f"     twine upload {files}\n"
    )


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    try:
        release(checked_version(arguments[0] if arguments else ""))
    except CannotRelease as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
