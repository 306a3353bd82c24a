"""What a code base that uses Celery, RQ or Dramatiq must change to use forkq. Reads the source text
only: neither the code base nor the other library is imported."""
