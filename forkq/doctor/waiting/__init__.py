"""Whether the jobs that wait in Redis fit the code that is here: ``forkq check``."""
