"""The pytest plugin, in small projects of users; all but one run in this process."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

JOBS = """
import forkq

forkq.configure("redis://127.0.0.1:1/0")
done = []

@forkq.job(name="mail", queue="mail")
def mail(number: int) -> None:
    done.append(number)
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with a jobs.py, whose Redis does not exist."""
    pytester.makepyfile(jobs=JOBS)
    return pytester


def test_a_push_is_refused_unless_the_test_asks_for_more(project: pytest.Pytester) -> None:
    """Also that of fixtures, of unittest's tests, and of tests that ask late."""
    project.makepyfile(
        """
        import asyncio, unittest
        import pytest
        from forkq import ServerUnavailable
        from forkq.testing import PushRefused, fake, recorded
        from jobs import done, mail

        @pytest.fixture(autouse=True)
        def user(request):
            if "forkq_jobs" in request.fixturenames:
                mail.perform_async(0)

        def test_refused():
            with pytest.raises(PushRefused, match="`forkq_jobs`"):
                mail.perform_async(1)

        def test_fails():
            mail.perform_async(1)

        def test_recorded(forkq_jobs):
            mail.perform_async(1)
            assert [job.args for job in forkq_jobs] == [[0], [1]]
            assert forkq_jobs.drain() == 2

        def test_fresh(forkq_jobs):
            assert len(forkq_jobs) == 1

        def test_late(request):
            jobs = request.getfixturevalue("forkq_jobs")
            mail.perform_async(1)
            jobs.enqueued(mail, times=1)

        @pytest.mark.forkq("inline")
        class TestInline:
            def test_performs(self):
                mail.perform_async(7)
                assert done[-1] == 7

            def test_shows_the_same_jobs(self, forkq_jobs):
                mail.perform_in(60, 8)
                forkq_jobs.enqueued(mail, args=[8], at=60)

        @pytest.mark.forkq("fake")
        def test_marked():
            mail.perform_async(1)
            assert len(recorded()) == 1

        @pytest.mark.forkq("real")
        def test_real():
            with pytest.raises(ServerUnavailable):
                mail.perform_async(1)

        @pytest.mark.usefixtures("forkq_jobs")
        class Old(unittest.TestCase):
            def test_recorded(self):
                mail.perform_async(1)
                assert len(recorded()) == 2

        class Plain(unittest.TestCase):
            def test_refused(self):
                with self.assertRaises(PushRefused):
                    mail.perform_async(1)

        def test_async(forkq_jobs):
            async def body():
                await asyncio.to_thread(mail.perform_async, 1)
            asyncio.run(body())
            forkq_jobs.enqueued(mail, args=[1])
        """
    )
    result = project.runpytest_inprocess("-p", "no:xdist", "--strict-markers")
    result.assert_outcomes(passed=11, failed=1)
    result.stdout.fnmatch_lines(
        "*PushRefused: this test would reach a real server, redis://127.0.0.1:1/0. *forkq_jobs*"
    )


def test_a_push_while_tests_are_collected_is_refused(project: pytest.Pytester) -> None:
    project.makepyfile("import jobs\njobs.mail.perform_async(1)\ndef test(): ...")
    result = project.runpytest_inprocess("-p", "no:xdist")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines("*PushRefused*")


def test_the_setting_changes_what_becomes_of_pushes(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nforkq_pushes = fake")
    project.makepyfile(
        """
        from forkq.testing import recorded
        from jobs import mail

        def test_one():
            mail.perform_async(1)
            assert len(recorded()) == 1

        def test_two():
            mail.perform_async(1)
            assert len(recorded()) == 1
        """
    )
    project.runpytest_inprocess("-p", "no:xdist").assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("setting", "marker", "message"),
    [
        ("off", "", "forkq_pushes = 'off' in the configuration of pytest"),
        ("real", "@pytest.mark.forkq('none')", "the marker `forkq` of *::test"),
        ("real", "@pytest.mark.forkq", "the marker `forkq` of *::test"),
    ],
)
def test_a_mode_that_does_not_exist_ends_the_run(
    project: pytest.Pytester, setting: str, marker: str, message: str
) -> None:
    project.makeini(f"[pytest]\nforkq_pushes = {setting}")
    project.makepyfile(f"import pytest\n{marker}\ndef test(): ...")
    result = project.runpytest_inprocess("-p", "no:xdist")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    found = [*result.outlines, *result.errlines]
    pytest.LineMatcher(found).fnmatch_lines(
        f"*{message}: write one of refuse, fake, inline, twice, real, not *"
    )


def test_a_push_of_a_conftest_is_refused_too(project: pytest.Pytester) -> None:
    """pytest imports it before it configures the plugins."""
    project.makeconftest("from jobs import mail\nmail.perform_async(1)")
    project.makepyfile("def test(): ...")
    result = project.runpytest_inprocess("-p", "no:xdist")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*PushRefused: this test would reach a real server*")


def test_workers_of_xdist_do_not_share_jobs(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makepyfile(
        """
        import pytest
        from jobs import mail

        @pytest.mark.parametrize("number", range(8))
        def test(forkq_jobs, number):
            mail.perform_async(number)
            assert [job.args for job in forkq_jobs] == [[number]]
        """
    )
    # Three processes that import no plugin but these.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    plugins = ("-p", "xdist", "-p", "forkq.testing.plugin")
    project.runpytest_subprocess(*plugins, "-n", "2").assert_outcomes(passed=8)


@pytest.mark.parametrize("setting", ["refuse", "twice"])
def test_each_run_is_done_twice_by_marker_and_by_setting(
    project: pytest.Pytester, setting: str
) -> None:
    """The fixture `forkq_jobs` alone does not take the setting back."""
    project.makeini(f"[pytest]\nforkq_pushes = {setting}")
    project.makepyfile(
        """
        import pytest
        from jobs import done, mail

        @pytest.mark.forkq("twice")
        def test_marked(forkq_jobs):
            done.clear()
            mail.perform_async(1)
            assert forkq_jobs.drain() == 1
            assert done == [1, 1]

        def test_by_setting(forkq_jobs, pytestconfig):
            done.clear()
            mail.perform_async(1)
            forkq_jobs.drain()
            assert len(done) == (2 if pytestconfig.getini("forkq_pushes") == "twice" else 1)

        @pytest.mark.forkq("fake")
        def test_once(forkq_jobs):
            done.clear()
            mail.perform_async(1)
            forkq_jobs.drain()
            assert done == [1]
        """
    )
    result = project.runpytest_inprocess("-p", "no:xdist", "--strict-markers")
    result.assert_outcomes(passed=3)
