"""What ``make demo`` runs: an app (``jobs.py``, ``forkq.toml``, the pushes in ``work.py``), and a
show around it that kills a child midway and counts at the end which jobs are done, dead or lost."""
