"""How each fault is done, and how it is undone."""

from __future__ import annotations

import contextlib
import heapq
import signal
import time
from collections.abc import Callable, Sequence

import psutil
from redis.exceptions import RedisError

from tests.redis.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import NotInTime, wait_until

from .host import Host, pid_inside, title
from .plan import Fault
from .timeline import Timeline

Undo = Callable[[], None]
# For a failover, and for a replica that has to get all data first.
PATIENCE = 20.0
REPLICA = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
# Redis must not lose what it has confirmed. It writes each change before it replies.
DURABLE = ("--appendfsync", "always")


class Servers:
    """Two servers, one of which is the master; the proxies lead to it."""

    def __init__(self) -> None:
        self.master = Server(tcp=True, aof=True, extra=(*REPLICA, *DURABLE)).start()
        self.replica = Server(tcp=True, aof=True, extra=(*REPLICA, *DURABLE)).start()
        self.follow()

    def follow(self) -> None:
        """Makes the replica follow the master."""
        self.replica.cli("REPLICAOF", "127.0.0.1", self.master.port)

    def fail_over(self) -> None:
        """The server's own FAILOVER: the master takes no write until its replica has all, and then
        changes places with it. (A failover that does not wait for this loses confirmed writes. They
        are lost to Redis, and no client can know of it.)"""
        wait_until(self._in_step, deadline=PATIENCE, every=0.05, what="a replica with all data")
        self.master.cli("FAILOVER", "TO", "127.0.0.1", self.replica.port, "TIMEOUT", 10_000)
        wait_until(self._promoted, deadline=PATIENCE, every=0.02, what="the replica's promotion")
        self.master, self.replica = self.replica, self.master

    def _in_step(self) -> bool:
        with contextlib.suppress(RedisError):
            return bool(self.replica.cli("ROLE")[3] == b"connected")
        return False

    def _promoted(self) -> bool:
        with contextlib.suppress(RedisError):
            return bool(self.replica.cli("ROLE")[0] == b"master")
        return False

    def close(self) -> None:
        """Ends both."""
        self.replica.close()
        self.master.close()


class Injector:
    """Does the faults of a plan, in the thread that has started the servers. `done` counts them."""

    def __init__(
        self, hosts: Sequence[Host], servers: Servers, more: Sequence[Proxy], timeline: Timeline
    ) -> None:
        self.done: dict[str, int] = {}
        self.kills: dict[str, float] = {}
        self._hosts = hosts
        self._servers = servers
        self._proxies = [*more, *(host.proxy for host in hosts)]
        self._timeline = timeline
        self._undo: list[tuple[float, int, Undo]] = []
        self._count = 0

    def inject(self, fault: Fault) -> None:
        """Does one. A host without a process of the wanted kind is spared."""
        host = self._hosts[fault.host]
        try:
            what = getattr(self, "_" + fault.kind.replace(" ", "_"))(host, fault)
        except (NotInTime, RedisError) as error:
            what = f"not done: {error}"
        except psutil.NoSuchProcess:
            what = ""
        self._timeline.note(fault.kind, what or f"{host.name}: no process to hit")
        if what and not what.startswith("not done"):
            self.done[fault.kind] = self.done.get(fault.kind, 0) + 1

    def undo_due(self, *, everything: bool = False) -> None:
        """Ends the faults whose time is over."""
        while self._undo and (everything or self._undo[0][0] <= time.monotonic()):
            with contextlib.suppress(psutil.NoSuchProcess, RedisError):
                heapq.heappop(self._undo)[2]()

    def _later(self, seconds: float, undo: Undo) -> None:
        self._count += 1
        heapq.heappush(self._undo, (time.monotonic() + seconds, self._count, undo))

    # Processes.

    def _kill(self, host: Host, found: Sequence[psutil.Process], fault: Fault) -> str:
        victim = _chosen(found, fault)
        if victim is None:
            return ""
        named = _named(host, victim)
        self.kills[f"{host.name}:{pid_inside(victim.pid)}"] = time.monotonic()
        host.kill(victim, fault.kind)
        return named

    def _kill_child(self, host: Host, fault: Fault) -> str:
        return self._kill(host, _children(host), fault)

    def _kill_clock(self, host: Host, fault: Fault) -> str:
        return self._kill(host, _clocks(host), fault)

    def _kill_master(self, host: Host, fault: Fault) -> str:
        return self._kill(host, host.master(), fault)

    def _kill_tree(self, host: Host, fault: Fault) -> str:
        host.kill_all(fault.kind)
        return f"{host.name}: all of its processes"

    def _lose_host(self, host: Host, fault: Fault) -> str:
        host.lose()
        self._later(1 + 4 * fault.strength, lambda: (host.start(), None)[1])
        return host.name

    def _pause(self, host: Host, found: Sequence[psutil.Process], fault: Fault) -> str:
        victim, seconds = _chosen(found, fault), 0.3 + 2.7 * fault.strength
        if victim is None:
            return ""
        victim.suspend()
        self._later(seconds, victim.resume)
        return f"{_named(host, victim)} for {seconds:.1f} s"

    def _pause_child(self, host: Host, fault: Fault) -> str:
        return self._pause(host, _children(host), fault)

    def _pause_clock(self, host: Host, fault: Fault) -> str:
        return self._pause(host, _clocks(host), fault)

    def _pause_master(self, host: Host, fault: Fault) -> str:
        return self._pause(host, host.master(), fault)

    def _stop_child(self, host: Host, fault: Fault) -> str:
        victim = _chosen(_children(host), fault)
        if victim is None:
            return ""
        host.causes[pid_inside(victim.pid)] = fault.kind
        victim.terminate()
        return _named(host, victim)

    def _stop_master(self, host: Host, fault: Fault) -> str:
        return self._tell_master(host, fault, signal.SIGTERM)

    def _rolling_restart(self, host: Host, fault: Fault) -> str:
        return self._tell_master(host, fault, signal.SIGUSR2)

    def _tell_master(self, host: Host, fault: Fault, number: signal.Signals) -> str:
        del fault
        for master in host.master():
            if number == signal.SIGTERM and host.stopping != master.pid:
                host.ended[0] += 1
                host.stopping = master.pid
            master.send_signal(number)
            return _named(host, master)
        return ""

    # The network of one host.

    def _cut_connections(self, host: Host, fault: Fault) -> str:
        return f"{host.name}: {host.proxy.hang_up()} connections"

    def _partition(self, host: Host, fault: Fault) -> str:
        seconds = 0.3 + 5 * fault.strength
        host.proxy.cut_off()
        self._later(seconds, host.proxy.restore)
        return f"{host.name} for {seconds:.1f} s"

    def _half_replies(self, host: Host, fault: Fault) -> str:
        seconds = 0.1 + fault.strength
        host.proxy.halves = True
        self._later(seconds, lambda: setattr(host.proxy, "halves", False))
        return f"{host.name} for {seconds:.1f} s"

    def _lost_replies(self, host: Host, fault: Fault) -> str:
        count = 1 + int(4 * fault.strength)
        host.proxy.cut(b"EVALSHA", count)
        return f"{host.name}: to {count} scripts"

    def _latency(self, host: Host, fault: Fault) -> str:
        seconds, host.proxy.delay = 0.5 + 2 * fault.choice, 0.01 + 0.2 * fault.strength
        self._later(seconds, lambda: setattr(host.proxy, "delay", 0))
        return f"{host.name}: {host.proxy.delay * 1000:.0f} ms for {seconds:.1f} s"

    # The server of all hosts.

    def _server_restart(self, host: Host, fault: Fault) -> str:
        self._servers.master.restart()
        return "it kept its data"

    def _server_killed(self, host: Host, fault: Fault) -> str:
        self._servers.master.kill()
        self._servers.master.start()
        return "it kept its data"

    def _server_paused(self, host: Host, fault: Fault) -> str:
        seconds = 0.3 + 2.5 * fault.strength
        server = self._servers.master
        server.pause()
        self._later(seconds, server.resume)
        return f"for {seconds:.1f} s"

    def _failover(self, host: Host, fault: Fault) -> str:
        self.undo_due(everything=True)  # a server that stands still takes no part
        self._servers.fail_over()
        for each in self._proxies:
            each.target = self._servers.master.port
            each.hang_up()
        return f"to port {self._servers.master.port}"

    def _server_full(self, host: Host, fault: Fault) -> str:
        seconds, server = 0.3 + 2 * fault.strength, self._servers.master
        server.cli("CONFIG", "SET", "maxmemory", 1)
        self._later(seconds, lambda: server.cli("CONFIG", "SET", "maxmemory", 0))
        return f"for {seconds:.1f} s"

    def _scripts_forgotten(self, host: Host, fault: Fault) -> str:
        self._servers.master.cli("SCRIPT", "FLUSH")
        return "SCRIPT FLUSH"

    def _clients_killed(self, host: Host, fault: Fault) -> str:
        self._servers.master.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        return "CLIENT KILL"


def _children(host: Host) -> list[psutil.Process]:
    return [each for each in host.everyone() if "forkq child" in title(each)]


def _clocks(host: Host) -> list[psutil.Process]:
    return [each for each in host.everyone() if "forkq clock" in title(each)]


def _chosen(found: Sequence[psutil.Process], fault: Fault) -> psutil.Process | None:
    return found[int(fault.choice * len(found))] if found else None


def _named(host: Host, process: psutil.Process) -> str:
    return f"{host.name}: {title(process)[:60]} (pid {pid_inside(process.pid)})"
