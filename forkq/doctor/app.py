"""Checks of the app: whether it can be imported, whether its periodic jobs can be published, and
whether it can be preloaded."""

from __future__ import annotations

from collections.abc import Iterable

from ..config.config import Config
from ..runtime.unserved import UNKNOWN_JOBS
from .finding import Finding, listed, unchecked
from .probe import AppReport


def app(config: Config, report: AppReport | None) -> Finding:
    """Whether children can import the app. ``report`` is None if none is named."""
    if report is None:
        return unchecked("app", "no app is named", 'give -r, or set app = "app.jobs"')
    named = ", ".join(config.app)
    if report.error:
        what, remedy = f"{named} cannot be imported: {report.error}", "`forkq start` shows where"
        return Finding("fail", "app", what, "children cannot boot", remedy)
    is_async = [capsule.name for capsule in config.capsules if capsule.is_async]
    if is_async and report.with_call:
        what = f"the capsule {is_async[0]!r} is async, and its jobs cannot run inside the "
        what += f"middleware {listed(report.with_call)}, which takes `call`"
        remedy = "write it as a generator function of (job) that yields once"
        return Finding("fail", "app", what, "children cannot boot", remedy)
    return Finding("ok", "app", f"{named} can be imported; jobs: {len(report.jobs)}")


def cron(report: AppReport | None) -> Finding:
    """Whether the periodic jobs of the code and of the file fit the jobs that they push."""
    if report is None or report.error:
        return unchecked("cron", "no app was imported")
    if report.cron_error:
        remedy = "mend it; `forkq config check` checks it too"
        return Finding("fail", "cron", report.cron_error, "children cannot boot", remedy)
    if report.cron_unknown:
        what = f"{UNKNOWN_JOBS.partition(';')[0]}: {listed(report.cron_unknown)}"
        remedy = "import their modules in the app that -r names, or mend `job` in [[cron]]"
        return Finding("warn", "cron", what, "they will fail", remedy)
    return Finding("ok", "cron", "every periodic job fits the job that it pushes")


def preload(config: Config, report: AppReport | None) -> Finding:
    """Which threads and sockets the app opens while it is imported."""
    if report is None or report.error:
        return unchecked("preload", "no app was imported")
    if not report.threads and not report.sockets:
        return Finding("ok", "preload", "the import of the app opens no thread and no socket")
    what = "; ".join(_parts(report))
    if not config.preload:
        return Finding("ok", "preload", f"off; with preload = true it would matter that {what}")
    remedy = 'open them in @forkq.on("startup"), or set preload = false'
    if report.threads:
        return Finding("fail", "preload", what, "forkq start refuses to fork threads", remedy)
    return Finding("warn", "preload", what, "all children would share these sockets", remedy)


def _parts(report: AppReport) -> Iterable[str]:
    if report.threads:
        yield f"the import starts the threads {listed(report.threads)}"
    if report.sockets:
        yield f"the import opens sockets: {listed(report.sockets)}"
