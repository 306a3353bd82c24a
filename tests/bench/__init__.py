"""Benchmarks. They print ratios that were measured in one run.

`make bench-parts` runs them, `make bench` the comparison with others in compare/.
"""
