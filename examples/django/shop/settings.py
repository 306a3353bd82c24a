"""The settings. PGHOST names a PostgreSQL server; without it, the rows are in a file."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).parent.parent
SECRET_KEY = "only for this example"  # noqa: S105 - it protects nothing
DEBUG = True
ROOT_URLCONF = "shop.urls"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["forkq.contrib.django", "orders"]
MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware"]

if "PGHOST" in os.environ:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ.get("PGDATABASE", "shop"),
            "CONN_MAX_AGE": None,  # each thread of a child keeps its connection
        }
    }
else:
    DATABASES = {
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "shop.sqlite3"}
    }

# What forkq.toml has elsewhere: the same tables and keys.
FORKQ = {
    "redis": {"url": os.environ.get("REDIS_URL", "redis://localhost:6379/0")},
    "capsules": {"default": {"queues": ["mail", "default"], "concurrency": 3}},
}
FORKQ_ON_COMMIT = True
