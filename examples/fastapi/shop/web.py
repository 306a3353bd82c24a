"""The web app of the shop: ``uvicorn shop.web:app``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy.orm import Session

from forkq.contrib.fastapi import lifespan
from forkq.contrib.sqlalchemy import push_after_commit

from .database import Base, Order, engine
from .jobs import remind, ship


@asynccontextmanager
async def whole_life(app: FastAPI) -> AsyncIterator[None]:
    """Makes the table; forkq's client is open while the app runs."""
    Base.metadata.create_all(engine)
    async with lifespan(app):
        yield


def database() -> Iterator[Session]:
    """A session for each request; what it has not committed is rolled back."""
    with Session(engine) as session:
        yield session


app = FastAPI(lifespan=whole_life)
Database = Annotated[Session, Depends(database)]


@app.post("/orders/{pieces}", status_code=201)
def add(pieces: int, session: Database) -> dict[str, int]:
    """Stores an order. Its job is pushed when the row is committed, and only then."""
    order = Order(pieces=pieces)
    session.add(order)
    session.flush()  # it has a number now
    order.jid = push_after_commit(session, ship.perform_async, order.id)
    number = order.id
    if pieces < 1:
        raise HTTPException(422, "an order has one piece at least")  # no row, and no job
    session.commit()
    return {"id": number}


@app.get("/orders/{number}")
def show(number: int, session: Database) -> dict[str, str]:
    """The state of an order, and the job that ships it."""
    order = session.get_one(Order, number)
    return {"status": order.status, "jid": order.jid}


@app.post("/orders/{number}/reminder", status_code=202)
async def send_reminder(number: int) -> dict[str, str]:
    """An async handler awaits the push: the loop goes on, even if Redis hangs."""
    return {"jid": await remind.aperform_in(3600, number)}
