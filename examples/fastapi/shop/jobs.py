"""The jobs of the shop."""

from __future__ import annotations

import forkq

from .database import Order, sessions


@forkq.job(name="Ship", queue="orders")
def ship(number: int) -> None:
    """Ships an order. A second run of the job finds it shipped, and does nothing."""
    order = sessions.get(Order, number, with_for_update=True)
    if order is not None and order.status == "new":
        order.status = "shipped"
        sessions.commit()


@forkq.job(name="Remind", queue="orders")
def remind(number: int) -> None:
    """Reminds a customer of an order."""
    print(f"order {number}: please pay")  # noqa: T201 - the work
