"""What the threads tell the screen."""

from __future__ import annotations

from textual.message import Message

from .acting import Outcome
from .watcher import PageFailed, Seen


class Answer(Message):
    """A message from a thread: what the watcher has seen, or a step of an action."""

    def __init__(self, found: Seen | PageFailed | Outcome) -> None:
        super().__init__()
        self.found = found
