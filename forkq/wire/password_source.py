"""Where the password of a Redis server is read when it stands in no URL. Any process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PasswordSource:
    """A file, or a command that prints the password; each connect reads it again, so that the
    password can change while processes run. ``str`` is for messages: arguments of a command may be
    secrets, too."""

    file: Path | None = None
    command: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        if self.file is not None:
            return f"password_file {self.file}"
        return f"password_command {self.command[0]}"
