"""forkq in other frameworks, each with an extra of its own: ``pip install 'forkq[flask]'``."""
