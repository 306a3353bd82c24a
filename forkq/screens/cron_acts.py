"""What can be done with a periodic job."""

from __future__ import annotations

from ..api import Server, cron
from .plans import ActionDone, Plan
from .texts import name as shown


def run(server: Server, name: str) -> Plan:
    one = cron.get(name, server)

    def do() -> ActionDone:
        jid = cron.run(one.name, server)
        return ActionDone(f"Pushed a job of {shown(one.name)}.", [jid] if jid else [], count=1)

    return Plan(f"Run {shown(one.name)} now? 1 job is pushed.", do, "Run it now", "/cron")


def pause(server: Server, name: str) -> Plan:
    one = cron.get(name, server)

    def do() -> ActionDone:
        cron.pause(one.name, server)
        undo = ("/cron/resume", {"name": one.name})
        return ActionDone(f"Paused {shown(one.name)}: none of its ticks is enqueued.", undo=undo)

    return Plan(f"Pause {shown(one.name)}?", do, back="/cron", ask=False)


def resume(server: Server, name: str) -> Plan:
    one = cron.get(name, server)

    def do() -> ActionDone:
        cron.resume(one.name, server)
        return ActionDone(f"Resumed {shown(one.name)}.")

    return Plan(f"Resume {shown(one.name)}?", do, back="/cron", ask=False)
