"""What staff may do in the web UI, as permissions of Django. There is no table."""

from __future__ import annotations

from typing import Final

from django.db import models

# The actions of the web UI (docs/web.md).
ACTIONS: Final = (
    *("pause queue", "resume queue", "clear queue", "change limits"),
    *("quiet process", "stop process", "dump stacks", "undo"),
    *("retry jobs", "delete jobs", "kill jobs", "cancel jobs", "move jobs"),
    *("free locks", "seal batch", "pause batch", "resume batch", "cancel batch", "cancel flow"),
    *("run periodic job", "pause periodic job", "resume periodic job"),
)


def codename(action: str) -> str:
    """The name of the permission for an action: its words, joined by underscores."""
    return action.replace(" ", "_")


class WebUI(models.Model):
    """Carries the permissions, and the link in the index of the admin."""

    class Meta:
        app_label = "forkq"
        managed = False
        default_permissions = ()
        permissions = tuple((codename(action), f"Can {action}") for action in ACTIONS)
        verbose_name = verbose_name_plural = "web UI"
