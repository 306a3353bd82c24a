"""forkq in other frameworks, each with its own extra: ``pip install 'forkq[flask]'``."""
