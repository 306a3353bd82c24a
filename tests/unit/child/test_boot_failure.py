"""What the log says about an app that cannot be loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forkq.runtime import app_loader
from forkq.runtime.app_frames import app_traceback


def boot_failure(app: str) -> str:
    """Loads an app that fails, and describes the failure as a child does."""
    with pytest.raises(ZeroDivisionError) as failure:
        app_loader.load_app([app])
    below_this_function = failure.tb.tb_next  # a child has only frames of forkq there
    return app_traceback(failure.value.with_traceback(below_this_function))


def test_the_traceback_begins_with_the_apps_own_first_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_app.py").write_text("import failing_helper\n")
    (tmp_path / "failing_helper.py").write_text("1 / 0\n")
    described = boot_failure("failing_app")
    assert not {"failing_app", "failing_helper"} & sys.modules.keys()
    first, frame, *_ = described.splitlines()
    assert first.startswith("Traceback")
    assert frame == f'  File "{tmp_path}/failing_app.py", line 1, in <module>'
    assert "importlib" not in described
    assert described.endswith("ZeroDivisionError: division by zero")
