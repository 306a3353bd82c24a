"""The pipes between master and child: complete messages from pieces of any size, and EOF."""

from __future__ import annotations

import fcntl
import os
import select
import selectors
import struct
from collections.abc import Iterator
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkq.runtime import pipe
from forkq.runtime.pipe import (
    Beat,
    ClassesHeld,
    DumpStacks,
    Exiting,
    Fact,
    HoldClasses,
    Lead,
    LeaseHeld,
    Order,
    PipeReader,
    Quiet,
    Ready,
    RunSuspects,
    SendBeat,
    Serves,
    Stop,
    SuspectsWait,
    Unbootable,
    facts,
    make_unbootable,
    orders,
    send,
)

ORDERS: list[Order] = [
    Quiet(),
    Stop(12.5),
    Stop(None),
    DumpStacks(),
    Lead(3.25),
    Lead(0.0),
    SendBeat(2.5),
    RunSuspects(on=True),
    HoldClasses(("Boom",)),
]
FACTS: list[Fact] = [
    Ready("vm:1:abc"),
    Serves("queue"),
    Unbootable("no module named 'app'"),
    Beat(3, "retiring", 10**9, 7),
    Exiting(),
    LeaseHeld(8.125),
    SuspectsWait(("default", "mail")),
    ClassesHeld(("Boom", "shop.Thumbnail")),
]


class Pipe:
    """Both ends of one pipe."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.write_end, False)

    def close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def close(self) -> None:
        self.close_write_end()
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1


@pytest.fixture
def connection() -> Iterator[Pipe]:
    ends = Pipe()
    yield ends
    ends.close()


def bytes_of(messages: list[Fact]) -> bytes:
    """The bytes that `send` writes for these."""
    ends = Pipe()
    try:
        for message in messages:
            assert send(ends.write_end, message)
        return os.read(ends.read_end, 1 << 16)
    finally:
        ends.close()


def test_orders_arrive_as_they_were_sent(connection: Pipe) -> None:
    reader = PipeReader(connection.read_end, orders)
    for order in ORDERS:
        assert send(connection.write_end, order)
    assert reader.read() == ORDERS
    assert reader.read() == []
    assert not reader.eof


def test_facts_arrive_as_they_were_sent(connection: Pipe) -> None:
    reader = PipeReader(connection.read_end, facts)
    for fact in FACTS:
        assert send(connection.write_end, fact)
    assert reader.read() == FACTS


def test_a_message_in_single_bytes_arrives_once_and_complete(connection: Pipe) -> None:
    reader = PipeReader(connection.read_end, facts)
    found: list[Fact] = []
    for byte in bytes_of(FACTS):
        os.write(connection.write_end, bytes([byte]))
        found += reader.read()
    assert found == FACTS


@given(st.lists(st.integers(1, 40), max_size=30))
def test_messages_cut_anywhere_arrive_complete(cuts: list[int]) -> None:
    ends = Pipe()
    try:
        reader, data, found = PipeReader(ends.read_end, facts), bytes_of(FACTS), []
        for size in [*cuts, len(data)]:
            os.write(ends.write_end, data[:size])
            data = data[size:]
            found += reader.read()
        assert found == FACTS
    finally:
        ends.close()


def test_eof_comes_after_the_last_message(connection: Pipe) -> None:
    reader = PipeReader(connection.read_end, facts)
    send(connection.write_end, FACTS[0])
    connection.close_write_end()
    assert reader.read() == [FACTS[0]]
    assert reader.eof
    assert reader.read() == []


def test_half_a_message_before_eof_is_no_message(connection: Pipe) -> None:
    reader = PipeReader(connection.read_end, facts)
    os.write(connection.write_end, bytes_of([FACTS[0]])[:-1])
    connection.close_write_end()
    assert reader.read() == []
    assert reader.eof


def test_reading_an_empty_pipe_does_not_block(connection: Pipe) -> None:
    reader = PipeReader(connection.read_end, orders)
    assert reader.read() == []
    assert not reader.eof


def test_a_selector_can_wait_for_a_reader(connection: Pipe) -> None:
    reader = PipeReader(connection.read_end, orders)
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        assert selector.select(0) == []
        send(connection.write_end, Quiet())
        [(key, _)] = selector.select(5)
    assert key.fileobj is reader


def test_sending_to_a_closed_pipe_returns_false(connection: Pipe) -> None:
    os.close(connection.read_end)
    connection.read_end = -1
    assert send(connection.write_end, Quiet()) is False


def test_sending_to_a_full_pipe_neither_blocks_nor_cuts_a_message(connection: Pipe) -> None:
    sent = 0
    while send(connection.write_end, FACTS[2]):
        sent += 1
    found = PipeReader(connection.read_end, facts).read()
    assert found == [FACTS[2]] * sent


@pytest.mark.parametrize("character", ["x", "é", "漢", "😀", "\udcff"])
def test_the_longest_reason_fits_an_atomic_write(connection: Pipe, character: str) -> None:
    message = make_unbootable(character * 10_000)
    assert send(connection.write_end, message)
    written = os.read(connection.read_end, 1 << 16)
    assert len(written) <= select.PIPE_BUF
    assert len(written) > 1000
    os.write(connection.write_end, written)
    [found] = PipeReader(connection.read_end, facts).read()
    assert isinstance(found, Unbootable)


def test_every_order_and_fact_of_the_module_is_tried_here() -> None:
    tried = {type(message) for message in [*ORDERS, *FACTS]}
    assert tried == {*get_args(pipe.Order), *get_args(pipe.Fact)}


def test_a_message_nested_without_end_is_garbled(connection: Pipe) -> None:
    """It raised RecursionError in the master, which ended it."""
    content = b"\x82\xa4type\xa5Ready\xa1x" + b"\x91" * 60_000
    fcntl.fcntl(connection.write_end, fcntl.F_SETPIPE_SZ, 1 << 17)
    os.write(connection.write_end, struct.pack("!I", len(content)) + content)
    reader = PipeReader(connection.read_end, facts)
    assert reader.read() == []
    assert reader.garbled


def test_one_read_ends_while_a_writer_goes_on(connection: Pipe) -> None:
    fcntl.fcntl(connection.write_end, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(connection.write_end, b"\0" * (1 << 20))
    reader = PipeReader(connection.read_end, facts)
    reader.read()
    assert not reader.eof
    assert select.select([connection.read_end], [], [], 0)[0], "it read everything at once"
