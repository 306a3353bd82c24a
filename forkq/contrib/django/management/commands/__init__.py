"""``manage.py forkq``."""
