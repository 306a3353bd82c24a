"""Benchmarks. They print ratios that were measured in one run.

`make bench` runs them; `make test` does not.
"""
