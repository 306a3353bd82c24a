"""What forkq reports to a monitoring system, from what is in Redis: no process has to be asked, and
a process that restarts loses no count.

``scraper.py`` reads it, ``exposition.py`` makes OpenMetrics of it (the extra ``metrics``), and
``server.py`` serves that. ``forkq.contrib.otel`` reports the same through OpenTelemetry.
"""
