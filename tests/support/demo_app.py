"""The demo's app, for tests. Its import registers jobs and a middleware. All test files are
imported before the first test, and no other test is to meet those."""

from __future__ import annotations

from examples.demo import jobs
from examples.demo.report import Account
from examples.demo.work import PushedJob, plan
from forkq import middleware, registry

__all__ = ["Account", "PushedJob", "jobs", "plan"]

middleware.server.members.remove(jobs.keep_journal)
for _name in [name for name, spec in registry._jobs.items() if spec.module == jobs.__name__]:
    del registry._jobs[_name]
