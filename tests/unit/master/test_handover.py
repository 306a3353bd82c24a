"""What the master's next program knows of the children that it inherits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from typing import get_args

import msgspec
import pytest

from forkq.config.capsule import Capsule
from forkq.config.recycling import Recycling
from forkq.errors import ConfigError
from forkq.master import handover
from forkq.master.child_handle import ChildHandle, Ordered, Told
from forkq.master.handover import (
    FORMAT,
    CanaryRecord,
    CapsuleRecord,
    ChildRecord,
    MasterRecord,
    RestartReport,
    record_of,
    revived,
    take_record,
)
from forkq.master.slot import Slot
from forkq.runtime import shared_files
from forkq.runtime.pipe import Exiting, Fact, Order
from tests.unit.master.handles import get_ready, make, tell


@pytest.fixture
def handle() -> Iterator[ChildHandle]:
    """A solo child: in no slot of the configuration, as a child that retires."""
    limits = Recycling(hard_max_memory=200 << 20)
    capsule = Capsule("default", (("default", 0),), 5, recycling=limits)
    child, reader = make(Slot("default.solo0", capsule, solo=True), os.getpid(), "h:1:solo")
    get_ready(child)
    yield child
    child.close()
    os.close(reader.fd)


def next_program(child: ChildHandle, *slots: Slot) -> ChildHandle:
    """The handle of the same child there, where these are the slots."""
    record = record_of(child, in_slot=bool(slots), rescued=False, silent_since=None)
    record = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=ChildRecord)
    found = revived(record, {slot.name: slot for slot in slots})
    if found.pidfd is not None:
        os.close(found.pidfd)
    return found


def test_a_child_outside_of_the_slots_keeps_its_capsule_and_limits(handle: ChildHandle) -> None:
    """Otherwise a job that takes all memory would do so unhindered after a rolling restart."""
    child = next_program(handle)
    assert child.slot.capsule is not None
    assert child.slot.capsule.name == "default"
    assert child.slot.capsule.recycling == Recycling(hard_max_memory=200 << 20)


@pytest.mark.parametrize("is_clock", [False, True])
def test_a_child_outside_of_the_slots_keeps_its_shard(handle: ChildHandle, is_clock: bool) -> None:
    """Otherwise its jobs would be looked for in another Redis when it dies."""
    handle.slot = Slot("default@mail.solo0", Capsule("default@mail", shard="mail"))
    if is_clock:
        handle.slot = Slot("clock@mail", None, clock_of="mail")
    assert next_program(handle).slot.shard == "mail"


def test_what_a_child_has_told_and_was_told_is_known_there(handle: ChildHandle) -> None:
    """Its queues are those that it serves, whatever the new configuration gives to its slot."""
    tell(handle, busy=2, processed=70, redis_lost="gone")
    handle.told.note(Exiting(3))
    handle.ordered, handle.carries = Ordered(5.0, 9.0), {"restart|stopped": 1}
    slot = Slot("default.solo0", Capsule("default", (("mail", 0),), 5))
    child = next_program(handle, slot)
    assert child.slot is slot
    assert child.queues == ("default",)
    assert child.beat == handle.beat
    assert child.told.exiting == Exiting(3)
    assert (child.files, child.born) == (handle.files, handle.born)
    assert child.ordered == Ordered(5.0, 9.0)
    assert child.carries == {"restart|stopped": 1}


def written(record: CanaryRecord | MasterRecord | dict[str, object]) -> dict[str, str]:
    """The environment of the program that gets this record."""
    fd = shared_files.make("test")
    os.pwrite(fd, msgspec.msgpack.encode(record), 0)
    return {handover._VARIABLE: str(fd)}


def test_a_record_of_another_form_is_refused_in_words() -> None:
    """Such as one of an earlier version of forkq."""
    environ = written({"type": "MasterRecord", "children": []})
    with pytest.raises(ConfigError, match="cannot take over from the version that runs"):
        take_record(environ)


def test_a_record_is_read_as_it_was_written(handle: ChildHandle) -> None:
    pidfile = os.open(os.devnull, os.O_RDONLY)
    record = MasterRecord(
        format=FORMAT,
        fixed={},
        pidfile=pidfile,
        children=[record_of(handle, in_slot=False, rescued=False, silent_since=7.0)],
        leader=0,
        quiet=False,
        restart=RestartReport(),
        again=False,
    )
    assert take_record(written(record)) == record
    os.close(pidfile)


# What crosses an exec: the records, and what an old child and a new master tell each other.
CROSSING = (
    *(CanaryRecord, MasterRecord, ChildRecord, CapsuleRecord, Told, Ordered, RestartReport),
    *get_args(Fact),
    *get_args(Order),
)
# For each FORMAT a digest of the fields of these structs. Until the first release that of the first
# FORMAT may change.
FORMS = {1: "6c4a834f4afaf9d5"}


def test_another_form_of_the_record_has_another_number() -> None:
    """The canary of a version that cannot read what this one writes must refuse it."""
    lines = [
        f"{each.__name__}.{field.encode_name} {field.required}"
        for each in CROSSING
        for field in msgspec.structs.fields(each)
    ]
    form = sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]
    assert FORMS.get(FORMAT) == form, (
        f"give the new form {form} a new FORMAT; or write it here for the present one, if each of "
        "two versions can read what the other one writes"
    )
