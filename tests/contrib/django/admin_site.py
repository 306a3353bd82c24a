"""A project with Django's admin and forkq's page, in a process of its own. Prints what three
visitors get, as JSON: nobody, staff, and staff while Redis is away."""

from __future__ import annotations

import json
import sys
from typing import Any

import django
from django.conf import settings
from django.urls import include, path

APPS = ["admin", "auth", "contenttypes", "sessions", "messages"]
TEMPLATES = {
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {
        "context_processors": [
            "django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
        ]
    },
}
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]


def main(url: str) -> None:
    settings.configure(
        SECRET_KEY="x",
        INSTALLED_APPS=[*(f"django.contrib.{app}" for app in APPS), "forkq.contrib.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        TEMPLATES=[TEMPLATES],
        MIDDLEWARE=MIDDLEWARE,
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["*"],
        STATIC_URL="static/",
        USE_TZ=True,
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],  # at no cost
        FORKQ={"redis": {"url": url}},
    )
    django.setup()
    from django.contrib import admin  # noqa: PLC0415 - Django must be set up
    from django.contrib.auth.models import User  # noqa: PLC0415
    from django.core.management import call_command  # noqa: PLC0415
    from django.test import Client  # noqa: PLC0415

    import forkq  # noqa: PLC0415

    urlpatterns.append(path("admin/forkq/", include("forkq.contrib.django.urls")))
    urlpatterns.append(path("admin/", admin.site.urls))
    call_command("migrate", verbosity=0)
    client, found = Client(), []
    found.append(client.get("/admin/forkq/"))
    client.force_login(User.objects.create_superuser("ada", password="x"))
    found.append(client.get("/admin/forkq/"))
    forkq.configure("redis://127.0.0.1:1/0")
    found.append(client.get("/admin/forkq/"))
    answers = [(answer.status_code, answer.content.decode()) for answer in found]
    sys.stdout.write(json.dumps(answers))


urlpatterns: list[Any] = []

if __name__ == "__main__":
    main(sys.argv[1])
