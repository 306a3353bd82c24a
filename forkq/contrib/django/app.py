"""What the children of a Django project load: the project itself, and the jobs of its apps.

A child imports this module after the fork; with ``preload = true`` the master does so before it.
"""

from __future__ import annotations

import django
from django.apps import apps
from django.conf import settings
from django.db import connections
from django.utils.module_loading import autodiscover_modules

from ...errors import CannotBoot
from . import configuration

_APP = "forkq.contrib.django"


def load() -> None:
    """Sets Django up, unless that is done, and imports the module ``jobs`` of each app, and its
    tasks if Django's tasks run in forkq. Raises ForkqError."""
    _check_configuration()
    configuration.use_databases_of_test()
    if not apps.ready:
        django.setup()
    if not apps.is_installed(_APP):
        raise CannotBoot(f'add "{_APP}" to INSTALLED_APPS')
    autodiscover_modules("jobs")
    if _has_tasks():
        autodiscover_modules("tasks")
    connections.close_all()  # what the import has opened must not be shared by a fork


def _check_configuration() -> None:
    """Checks the setting FORKQ before Django's setup, which makes it the configuration of this
    process."""
    is_provided = configuration.is_provided()
    if configuration.read() and not is_provided:
        raise CannotBoot(
            "settings.FORKQ is not in force: only `manage.py forkq start` reads it; use that "
            "instead of `forkq start`, or move FORKQ to forkq.toml"
        )


def _has_tasks() -> bool:
    """Whether the tasks of Django run in forkq."""
    backends = getattr(settings, "TASKS", {}).values()
    return any(str(each.get("BACKEND", "")).startswith(_APP) for each in backends)


load()
