"""What covers the page for a moment: a question, the help."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from ..screens.plans import Plan
from .cells import prose, words


class Question(ModalScreen[bool]):
    """The question before an action: what it will do to how many jobs. No is the answer of
    Enter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
        Binding("left,right", "app.focus_next", show=False),
    ]

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan

    def compose(self) -> ComposeResult:
        style = "bold red" if self._plan.danger else "bold"
        lines = [words((self._plan.says, style)), *map(prose, self._plan.details)]
        if self._plan.danger:
            lines.append(Text("This cannot be undone."))
        with Vertical(classes="box"):
            yield Static(Text("\n").join(lines))
            with Horizontal(classes="buttons"):
                yield Button(Text("No (n)"), id="no", compact=True)
                yield Button(Text(f"{self._plan.button} (y)"), id="yes", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Help(ModalScreen[None]):
    """The page with all keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "dismiss", "Back")]

    def __init__(self, lines: Text) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box"):
            yield Static(self._lines)
