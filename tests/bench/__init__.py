"""Benchmarks: ratios measured in one run, printed, and compared with nothing but each other.

Run them with `make bench`; they are no part of `make test`.
"""
