"""The table of the shop, and its sessions."""

from __future__ import annotations

import os

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, scoped_session, sessionmaker

from forkq.contrib.sqlalchemy import session_per_job


class Base(DeclarativeBase):
    """The tables."""


class Order(Base):
    """One order. ``jid`` is the job that ships it."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    pieces: Mapped[int]
    status: Mapped[str] = mapped_column(default="new")
    jid: Mapped[str] = mapped_column(default="")


engine = create_engine(os.environ["DATABASE_URL"], pool_pre_ping=True)
sessions = scoped_session(sessionmaker(engine))
session_per_job(sessions)
