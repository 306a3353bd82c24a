"""Redis Clusters for the tests: nodes on loopback, whose slots a test moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .server import Server, _free_port
from .waiting import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

SLOTS = 16384
# Milliseconds until a silent node counts as failed: above what a busy machine needs.
NODE_TIMEOUT = 2000


class Node(Server):
    """One node of a cluster."""

    def __init__(self, *, aof: bool = False, extra: Sequence[str] = ()) -> None:
        self.bus = _free_port()
        bus = ("--cluster-enabled", "yes", "--cluster-port", str(self.bus))
        # One that gives its last slot away stays a primary.
        stays = ("--cluster-allow-replica-migration", "no")
        waits = ("--cluster-node-timeout", str(NODE_TIMEOUT), "--repl-diskless-sync-delay", "0")
        super().__init__(tcp=True, aof=aof, extra=(*bus, *stays, *waits, *extra))

    @property
    def id(self) -> str:
        """The name that other nodes know it by."""
        return str(self.cli("CLUSTER", "MYID").decode())

    @property
    def is_ready(self) -> bool:
        """Whether it takes commands for its slots."""
        return b"cluster_state:ok" in self.cli("CLUSTER", "INFO")

    def meet(self, other: Node) -> None:
        """Makes itself known to ``other``."""
        self.cli("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus)


class Cluster:
    """So many primaries that share the slots, each with so many replicas."""

    def __init__(self, primaries: int = 1, replicas: int = 0, *, aof: bool = False) -> None:
        self.primaries = [Node(aof=aof) for _ in range(primaries)]
        self.replicas = [Node(aof=aof) for _ in range(primaries * replicas)]
        self.joined: list[Node] = []

    @property
    def nodes(self) -> list[Node]:
        """All of them."""
        return [*self.primaries, *self.replicas, *self.joined]

    def start(self) -> Self:
        """Starts the nodes, shares the slots out, and waits until all of them know it."""
        for node in self.nodes:
            node.start()
        share = SLOTS // len(self.primaries)
        for number, node in enumerate(self.primaries):
            last = SLOTS - 1 if node is self.primaries[-1] else share * (number + 1) - 1
            node.cli("CLUSTER", "ADDSLOTSRANGE", share * number, last)
            node.cli("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.meet(self.nodes[0])
        self._wait_until_known()
        for number, replica in enumerate(self.replicas):
            self.follow(replica, self.primaries[number % len(self.primaries)])
        wait_until(lambda: all(node.is_ready for node in self.nodes), deadline=30, what="a cluster")
        return self

    def follow(self, replica: Node, primary: Node) -> None:
        """Makes one a replica of the other, and waits until it has the data."""
        replica.cli("CLUSTER", "REPLICATE", primary.id)
        wait_until(
            lambda: replica.cli("INFO", "replication").get("master_link_status") == "up",
            deadline=30,
            what="the replica",
        )

    def owner(self, slot: int) -> Node:
        """The primary that has the slot, as the first node that lives says."""
        for node in self.nodes:
            if node.running:
                for first, last, (_, port, *_), *_ in node.cli("CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return next(each for each in self.nodes if each.port == port)
        raise AssertionError(f"no node has slot {slot}")

    def add(self) -> Node:
        """A node more, without slots."""
        node = Node().start()
        self.joined.append(node)
        node.meet(next(each for each in self.primaries if each.running))
        self._wait_until_known()
        wait_until(lambda: node.is_ready, deadline=30, what="the node that joined")
        return node

    def forget(self, node: Node) -> None:
        """Takes a node without slots out of the cluster, and ends it."""
        self.joined.remove(node)
        gone = node.id
        for other in self.nodes:
            if other.running:
                other.cli("CLUSTER", "FORGET", gone)
        node.close()

    def begin_move(self, slot: int, source: Node, target: Node) -> None:
        """From now on the slot moves."""
        target.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def cancel_move(self, slot: int, source: Node, target: Node) -> None:
        """The slot stays where it is."""
        for node in (source, target):
            node.cli("CLUSTER", "SETSLOT", slot, "STABLE")

    def end_move(self, slot: int, source: Node, target: Node) -> None:
        """Moves all of its keys; from now on ``target`` has the slot."""
        while True:
            keys = source.cli("CLUSTER", "GETKEYSINSLOT", slot, 100)
            if not keys:
                break
            arguments = ("127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            source.cli("MIGRATE", *arguments)
        for node in (target, source, *self.primaries, *self.joined):
            if node.running:
                node.cli("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def move(self, slot: int, source: Node, target: Node) -> None:
        """Moves the slot with all of its keys."""
        self.begin_move(slot, source, target)
        self.end_move(slot, source, target)

    def close(self) -> None:
        """Ends the nodes."""
        for node in self.nodes:
            node.close()

    def _wait_until_known(self) -> None:
        count = len(self.nodes)
        wait_until(
            lambda: all(_known(node) == count for node in self.nodes),
            deadline=30,
            what="nodes that know each other",
        )


def _known(node: Node) -> int:
    lines: Any = node.cli("CLUSTER", "NODES")
    return sum(b"handshake" not in line and b"noaddr" not in line for line in lines.splitlines())


def slot_of(node: Node, key: str) -> int:
    """In which slot the key is."""
    return int(node.cli("CLUSTER", "KEYSLOT", key))
