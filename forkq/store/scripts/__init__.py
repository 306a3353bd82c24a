"""The Lua scripts. Each makes one atomic change, and begins with its keys, arguments and reply.

A script may be put together from parts: that file replaces a line ``--- @include "fetch/move"``.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any, Final

import msgspec

_FOLDER: Final = resources.files(__package__)  # each call takes longer than all the rest
_INCLUDE: Final = re.compile(rb'^ *--- @include "([a-z_/]+)"\n', re.MULTILINE)


class Script(msgspec.Struct, frozen=True):
    """A script's text and the SHA1 by which the server knows it."""

    name: str
    text: bytes
    sha: bytes


class Call(msgspec.Struct, frozen=True):
    """A call of a script, to be sent among other commands."""

    script: Script
    keys: Sequence[Any]
    arguments: Sequence[Any]

    @property
    def command(self) -> tuple[Any, ...]:
        """The command for a server that knows the script."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.arguments)


def script_of(name: str, text: bytes) -> Script:
    """The script with this text."""
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


def _load(name: str) -> Script:
    return script_of(name, _read(name))


@functools.cache  # half of the scripts include the same few files
def _read(name: str) -> bytes:
    """The text of a file, with the files that it includes."""
    text = _FOLDER.joinpath(f"{name}.lua").read_bytes()
    return _INCLUDE.sub(lambda include: _read(include[1].decode()), text)


SET_ADD = _load("set_add")
BATCH_CHANGE = _load("batch_change")
FLOW_CHANGE = _load("flow_change")
FLOW_GRAFT = _load("flow_graft")
FLOW_PUSH = _load("flow_push")
BURY = _load("bury")
CRON_CLAIM = _load("cron_claim")
RULES_CHANGE = _load("rules_change")
DUE_JOBS = _load("due_jobs")
FIRST_DUE = _load("first_due")
CRON_ENDED = _load("cron_ended")
FETCH = _load("fetch")
FETCH_SUSPECTS = _load("fetch_suspects")
ISOLATE = _load("isolate")
LEASE_RETURN = _load("lease_return")
FIND_JOB = _load("find_job")
FIND_JOB_IN_LIST = _load("find_job_in_list")
FIND_JOBS = _load("find_jobs")
JOBS_MOVE = _load("jobs_move")
JOBS_RESTORE = _load("jobs_restore")
MOVE_CLOSE = _load("move_close")
MOVE_END = _load("move_end")
MOVE_PUT = _load("move_put")
MOVE_TAKE = _load("move_take")
LIST_PAGE = _load("list_page")
SET_PAGE = _load("set_page")
COUNTERS_FLUSH = _load("counters_flush")
LEASES_OF_OWNER = _load("leases_of_owner")
DEPLOY_MARK = _load("deploy_mark")
QUEUES_IN_FLIGHT = _load("queues_in_flight")
CRON_PUBLISH = _load("cron_publish")
CRON_REBASE = _load("cron_rebase")
CANCEL = _load("cancel")
CURSOR_RETURN = _load("cursor_return")
CURSOR_SAVE = _load("cursor_save")
CANCEL_CLOSED = _load("cancel_closed")
CANCELLED_JOBS = _load("cancelled_jobs")
DOUBT_OVER = _load("doubt_over")
DOUBT_SURE = _load("doubt_sure")
EFFECTS_ALONE = _load("effects_alone")
NOTES_CARRY = _load("notes_carry")
END = _load("end")
EXPIRED_JOBS = _load("expired_jobs")
MARKED_IN_SET = _load("marked_in_set")
MARKED_LOOK = _load("marked_look")
PUSH = _load("push")
PUSH_NEWEST = _load("push_newest")
PUSH_DEBOUNCED = _load("push_debounced")
TICKET_START = _load("ticket_start")
PROCESS_RECORD = _load("process_record")
MARK_FAILED = _load("mark_failed")
RECOVER = _load("recover")
REQUEUE = _load("requeue")
RESULTS_ENDED = _load("results_ended")
LOCK_FREE = _load("lock_free")
LEADER_RESIGN = _load("leader_resign")
RETRY = _load("retry")
SIGNAL_SEND = _load("signal_send")
SIGNAL_WAKE = _load("signal_wake")
STEP_SAVE = _load("step_save")
STEP_WAIT = _load("step_wait")
LEADER_CLAIM = _load("leader_claim")
COUNTERS_ADD_MISSING = _load("counters_add_missing")
CHILD_ENDED = _load("child_ended")
CRON_TICK = _load("cron_tick")
SUSPECTS_FORGET = _load("suspects_forget")
SUSPECTS_RETURN = _load("suspects_return")
CLASS_DEATH = _load("class_death")
CLASS_RELEASE = _load("class_release")
CLASS_JOBS = _load("class_jobs")

_read.cache_clear()  # each script has its text now
