"""What can be done with a queue."""

from __future__ import annotations

import getpass
import os
import socket
from urllib.parse import urlencode

from .. import api
from ..api.changes import MOST_UNDONE, UNDO_TIME
from ..api.queue import whole_queue
from ..units import plural
from .plans import ActionDone, Plan
from .texts import name as shown


def path_of(name: str) -> str:
    """The page of a queue."""
    return f"/queue?{urlencode({'name': name})}"


def suspects_beside_others(state: api.QueueState) -> str:
    """What a person should know of a queue's suspects; "" if there are none, or no other jobs: then
    its report says that they hold it."""
    if not 0 < state.suspects < state.size:
        return ""
    of = f"{state.suspects:,} of its {state.size:,} jobs"
    return f"{of} {'is a suspect: it' if state.suspects == 1 else 'are suspects: each'} runs alone."


def _all_parts(name: str, server: api.Server) -> str:
    """What an action says of a queue that is spread over several shards: it acts on each part."""
    count = len(server.parts_of(name))
    return f" in all of its {count} parts" if count > 1 else ""


def operator() -> str:
    """Who acts on this machine: the user and the host."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in many containers
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def pause(server: api.Server, name: str, by: str = "") -> Plan:
    """The plan to pause a queue. ``by``: who acts, if that is not the user of this process."""
    one, parts = whole_queue(name, server), _all_parts(name, server)

    def do() -> ActionDone:
        one.pause(by or operator())
        undo = ("/queue/resume", {"name": one.name})
        text = f"Paused {shown(one.name)}{parts}: no process takes its jobs."
        return ActionDone(text, undo=undo)

    return Plan(f"Pause {shown(one.name)}{parts}?", do, back=path_of(one.name), ask=False)


def resume(server: api.Server, name: str) -> Plan:
    one, parts = whole_queue(name, server), _all_parts(name, server)

    def do() -> ActionDone:
        one.resume()
        return ActionDone(f"Resumed {shown(one.name)}{parts}.")

    return Plan(f"Resume {shown(one.name)}{parts}?", do, back=path_of(one.name), ask=False)


def clear(server: api.Server, name: str) -> Plan:
    one, parts = whole_queue(name, server), _all_parts(name, server)
    count = one.size
    jobs = plural(count, "job")
    keeps = count <= MOST_UNDONE

    def do() -> ActionDone:
        if not keeps:
            cleared = one.clear()
            return ActionDone(
                f"Deleted {plural(cleared, 'job')} from {shown(one.name)}{parts}.", count=cleared
            )
        outcome = one.delete_all(undo=True)
        undo = ("/undo", {"token": outcome.undo}) if outcome.undo else None
        text = f"Deleted {plural(outcome.done, 'job')} from {shown(one.name)}{parts}."
        return ActionDone(text, undo=undo, count=outcome.done)

    says = f"Delete {jobs} from {shown(one.name)}{parts}?"
    details = () if not keeps else (f"They can be put back for {UNDO_TIME}.",)
    return Plan(
        says, do, f"Delete {jobs}", path_of(one.name), ask=True, danger=not keeps,
        details=(*details, "Jobs that run now go on."),
    )  # fmt: skip
