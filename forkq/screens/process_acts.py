"""What a process can be told."""

from __future__ import annotations

from .. import api
from ..units import plural
from .plans import ActionDone, Plan
from .texts import name as shown


def _host_and_pid(process: api.Process) -> str:
    return f"process {process.pid} on {shown(process.hostname)}"


def quiet(server: api.Server, process: api.Process) -> Plan:
    def do() -> ActionDone:
        api.ProcessSet(server).quiet(process.identity)
        return ActionDone(
            f"Told {_host_and_pid(process)} to fetch no more; it hears it at its next heartbeat."
        )

    running = plural(process.busy, "running job")
    return Plan(
        f"Quiet {_host_and_pid(process)}?", do, "Quiet it", "/busy", danger=True,
        details=(f"It fetches no more jobs. {running} go on.", "Only a restart ends this."),
    )  # fmt: skip


def stop(server: api.Server, process: api.Process) -> Plan:
    def do() -> ActionDone:
        api.ProcessSet(server).stop(process.identity)
        return ActionDone(
            f"Told {_host_and_pid(process)} to stop; it hears it at its next heartbeat."
        )

    running = plural(process.busy, "running job")
    lines = (
        f"{running} may finish; what still runs at the time-out goes back to its queue.",
        "Its master starts a new child in its place."
        if process.master
        else "It is Sidekiq: forkq does not start a new one in its place.",
    )
    return Plan(
        f"Stop {_host_and_pid(process)}?", do, "Stop it", "/busy", danger=True, details=lines
    )


def stacks(server: api.Server, process: api.Process) -> Plan:
    def do() -> ActionDone:
        api.ProcessSet(server).dump_stacks(process.identity)
        return ActionDone(f"Told {_host_and_pid(process)} to log its stacks: look into its log.")

    return Plan(f"Dump the stacks of {_host_and_pid(process)}?", do, back="/busy", ask=False)
