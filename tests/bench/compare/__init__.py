"""The bench: forkq and its peers in turn, in one run, near Redis and a network away.

`make bench` runs it: environments.py installs each peer, plan.py puts the cells in order, cell.py
measures one of them, record.py keeps the raw figures, documents.py writes docs/benchmarks.md.
"""
