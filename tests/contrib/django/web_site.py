"""A project with Django's admin and the whole web UI, in a process of its own: WSGI or ASGI.

Prints its port and the session of each user as one line of JSON, and serves until its standard
input ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import django
import uvicorn
from django.conf import settings
from django.urls import include, path

from tests.contrib.django.admin_site import APPS, MIDDLEWARE, TEMPLATES

USERS = {"ada": {"is_superuser": True, "is_staff": True}, "bob": {"is_staff": True}, "eve": {}}
SAFE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
urlpatterns: list[Any] = []


def set_up(url: str, folder: str) -> None:
    settings.configure(
        SECRET_KEY="x" * 50,
        INSTALLED_APPS=[*(f"django.contrib.{app}" for app in APPS), "forkq.contrib.django"],
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/site.sqlite3"}
        },
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        TEMPLATES=[TEMPLATES],
        MIDDLEWARE=[*SAFE, *MIDDLEWARE],
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["127.0.0.1"],
        STATIC_URL="static/",
        USE_TZ=True,
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],  # at no cost
        FORKQ={"redis": {"url": url}},
    )
    django.setup()
    from django.contrib import admin  # noqa: PLC0415 - Django must be set up
    from django.core.management import call_command  # noqa: PLC0415

    urlpatterns.append(path("ops/jobs/", include("forkq.contrib.django.web")))
    urlpatterns.append(path("admin/", admin.site.urls))
    call_command("makemigrations", check=True, verbosity=0)  # exits if forkq wants one
    call_command("migrate", verbosity=0)


def sessions() -> dict[str, str]:
    """A session of each user; bob may pause queues. The password of mallory changes after the
    login."""
    from django.contrib.auth.models import Permission, User  # noqa: PLC0415
    from django.test import Client  # noqa: PLC0415

    found = {}
    for name, rights in {**USERS, "mallory": {"is_staff": True}}.items():
        user = User.objects.create_user(name, password="x", **rights)
        client = Client()
        client.force_login(user)
        found[name] = client.cookies["sessionid"].value
    User.objects.get(username="bob").user_permissions.add(
        Permission.objects.get(codename="pause_queue", content_type__app_label="forkq")
    )
    mallory = User.objects.get(username="mallory")
    mallory.set_password("y")
    mallory.save()
    return found


def serve_wsgi(told: dict[str, Any]) -> None:
    from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler  # noqa: PLC0415
    from django.core.wsgi import get_wsgi_application  # noqa: PLC0415

    server = ThreadedWSGIServer(("127.0.0.1", 0), WSGIRequestHandler)
    server.set_app(get_wsgi_application())
    tell({**told, "port": server.server_port})
    server.serve_forever()


def serve_asgi(told: dict[str, Any]) -> None:
    from django.core.asgi import get_asgi_application  # noqa: PLC0415

    config = uvicorn.Config(get_asgi_application(), log_level="error", lifespan="off")
    bound = uvicorn.Config(get_asgi_application(), host="127.0.0.1", port=0).bind_socket()
    bound.listen()  # who connects from now on waits for the server
    tell({**told, "port": bound.getsockname()[1]})
    uvicorn.Server(config).run([bound])


def tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    set_up(sys.argv[2], sys.argv[3])
    threading.Thread(target=end_with_input, daemon=True).start()
    {"wsgi": serve_wsgi, "asgi": serve_asgi}[sys.argv[1]]({"sessions": sessions()})
