"""The default paths of the pidfile, the files beside it and the state folder."""

from __future__ import annotations

import pwd
import re
from pathlib import Path

import pytest

from forkq.config.load import load
from tests.support.config_files import Loader


class TestPaths:
    def test_systemds_folders_come_first(self, loaded: Loader) -> None:
        config = loaded(None, RUNTIME_DIRECTORY="/run/shop:/run/x", STATE_DIRECTORY="/var/lib/shop")
        assert config.pidfile == Path("/run/shop/forkq.pid")
        assert config.state_dir == Path("/var/lib/shop")

    def test_then_the_users_with_a_name_for_directory_and_tag(
        self, loaded: Loader, tmp_path: Path
    ) -> None:
        runtime = tmp_path / "run"
        runtime.mkdir()
        environ = {"XDG_RUNTIME_DIR": str(runtime), "XDG_STATE_HOME": "/state"}
        plain, tagged = loaded(None, **environ), loaded(None, {"tag": "a/b c"}, **environ)
        assert plain.pidfile.parent == tagged.pidfile.parent == runtime / "forkq"
        folder = re.escape(re.sub(r"[^A-Za-z0-9_.-]+", "-", tmp_path.name)[:64].strip(".-"))
        assert re.fullmatch(rf"{folder}-[0-9a-f]{{8}}\.pid", plain.pidfile.name)
        assert re.fullmatch(r"a-b-c-[0-9a-f]{8}\.pid", tagged.pidfile.name)
        assert plain.state_dir == Path("/state/forkq") / plain.pidfile.stem
        assert tagged.state_dir == Path("/state/forkq") / tagged.pidfile.stem

    def test_tags_that_look_alike_in_a_file_name_stay_apart(self, loaded: Loader) -> None:
        pidfiles = {loaded(None, {"tag": tag}).pidfile for tag in ("a b", "a/b", "a-b")}
        assert len(pidfiles) == 3

    def test_the_same_tag_in_two_directories_stays_apart(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        pidfiles = {
            load(None, {"tag": "t"}, {}, tmp_path / name).pidfile for name in ("one", "two")
        }
        assert len(pidfiles) == 2

    @pytest.mark.parametrize(
        ("uid", "run_is_writable", "folder"),
        [(0, True, "/run/forkq"), (0, False, "/tmp/forkq-0"), (7, True, "/tmp/forkq-7")],
    )
    def test_else_run_for_root_and_the_temporary_folder(
        self, loaded: Loader, monkeypatch: pytest.MonkeyPatch, uid: int, run_is_writable: bool,
        folder: str,
    ) -> None:  # fmt: skip
        monkeypatch.setattr("forkq.config.paths.os.getuid", lambda: uid)
        monkeypatch.setattr("forkq.config.paths.os.access", lambda path, mode: run_is_writable)
        monkeypatch.delenv("TMPDIR", raising=False)
        config = loaded(None, XDG_RUNTIME_DIR="/no/such/folder", HOME="/home/me")
        assert config.pidfile.parent == Path(folder)
        assert config.state_dir.parent == Path("/home/me/.local/state/forkq")

    def test_a_user_without_home_and_passwd_entry_has_the_home_that_containers_give(
        self, loaded: Loader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As under Kubernetes' runAsUser or `docker run --user 54321`. Only the embedded server
        ever looks into the folder, and it says what to set if it cannot make it."""

        def no_entry(uid: int) -> None:
            raise KeyError(f"getpwuid(): uid not found: {uid}")

        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr(pwd, "getpwuid", no_entry)
        config = loaded(None)
        assert config.state_dir.parent == Path("/.local/state/forkq")
        assert loaded(None, XDG_STATE_HOME="/state").state_dir.parent == Path("/state/forkq")

    def test_relative_paths_start_at_the_working_directory(
        self, loaded: Loader, tmp_path: Path
    ) -> None:
        config = loaded('[forkq]\npidfile = "a.pid"\nstate_dir = "s"')
        assert (config.pidfile, config.state_dir) == (tmp_path / "a.pid", tmp_path / "s")

    def test_files_beside_the_pidfile(self, loaded: Loader) -> None:
        config = loaded(None, {"pidfile": "/run/a.pid"})
        assert config.url_file == Path("/run/a.redis")
        assert config.status_file == Path("/run/a.status.json")
        assert loaded(None, {"pidfile": "/run/a.b"}).url_file == Path("/run/a.b.redis")
