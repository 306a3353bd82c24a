"""``forkq demo``: a real workload on real files, a kill in the middle, and the books at the end.

``jobs`` is the app, as a user would write one; children load it. Everything else runs in the
process that a person started.
"""
