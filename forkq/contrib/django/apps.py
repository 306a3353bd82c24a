"""What Django does with forkq when it is set up, in any process of the project."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.core.signals import setting_changed
from django.db.backends.signals import connection_created
from django.db.models import Choices, Model, QuerySet
from django.utils.functional import Promise

from ... import middleware, registry
from ...client import transactions
from ...errors import JobDecision
from ...wire.payload import remedies
from ..surround import surround
from . import activation, configuration, connections, on_commit
from .checks import check_settings

_REMEDIES: dict[type, str] = {
    Model: "push its primary key (`.pk`), and load the object inside the job",
    QuerySet: "push a list of primary keys, and load the objects inside the job",
    Choices: "pass its .value",
    Promise: "pass str(value)",
}


class ForkqConfig(AppConfig):
    """The app of INSTALLED_APPS. It connects to nothing and loads no job."""

    name = "forkq.contrib.django"
    label = "forkq"
    verbose_name = "forkq"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Called once for each setup of Django, and again when a test changes INSTALLED_APPS."""
        configuration.provide()
        remedies.update(_REMEDIES)
        transactions.on_commit = on_commit.on_commit
        transactions.held = on_commit.held
        JobDecision.refusal = staticmethod(on_commit.refusal_of_decisions)
        connection_created.connect(on_commit.note_connection)
        on_commit.obey_setting()
        setting_changed.connect(on_commit.obey_setting)
        checks.register(check_settings)
        _add_middleware()


def _add_middleware() -> None:
    if activation.note in middleware.client:
        return
    middleware.client.append(activation.note)
    middleware.server.prepend(activation.activate)
    middleware.server.prepend(connections.renew_for_coroutines)
    surround(connections.renewed)
    registry.on("fork")(connections.leave_to_master)
