"""The Lua scripts: one atomic move per file, its keys and arguments documented on top of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the SHA1 by which the server knows it."""

    name: str
    text: bytes
    sha: bytes


def _load(name: str) -> Script:
    text = resources.files(__package__).joinpath(f"{name}.lua").read_bytes()
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


SET_ADD = _load("set_add")
BURY = _load("bury")
CRON_CLAIM = _load("cron_claim")
RULES_CHANGE = _load("rules_change")
DUE_JOBS = _load("due_jobs")
CRON_ENDED = _load("cron_ended")
FETCH = _load("fetch")
FIND_JOB = _load("find_job")
FIND_JOB_IN_LIST = _load("find_job_in_list")
COUNTERS_FLUSH = _load("counters_flush")
LEASES_OF_OWNER = _load("leases_of_owner")
DEPLOY_MARK = _load("deploy_mark")
QUEUES_IN_FLIGHT = _load("queues_in_flight")
CRON_PUBLISH = _load("cron_publish")
CRON_REBASE = _load("cron_rebase")
PROCESS_RECORD = _load("process_record")
RECOVER = _load("recover")
REQUEUE = _load("requeue")
LEADER_RESIGN = _load("leader_resign")
RETRY = _load("retry")
LEADER_CLAIM = _load("leader_claim")
COUNTERS_ADD_MISSING = _load("counters_add_missing")
CRON_TICK = _load("cron_tick")
