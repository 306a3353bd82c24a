"""The metrics by name: what each is, and which labels it has. docs/metrics.md is checked by it."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class Family(msgspec.Struct, frozen=True):
    """One metric. A counter's samples are called ``NAME_total``."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def query_name(self) -> str:
        """The name of the metric in a query."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


# Stands first on each metric where there is more than one Redis.
SHARD: Final = "shard"

_OF_CHILDREN: Final = ("host", "capsule")

# Counters of these reasons are 0 before the first event, so that ``rate`` and ``increase`` see it.
# Another reason, such as a rare signal, comes with its first event.
RESTARTS: Final = (
    *("max_jobs", "max_age", "max_memory", "hard_timeout", "reload", "rolling_restart"),
    *("silent", "without_an_answer_of_redis", "removed", "stopped"),
)
CRASHES: Final = ("exit", "boot", "oom", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGTERM")

UP: Final = Family("forkq_up", "gauge", "1 if Redis answered all questions of this scrape in time")

FAMILIES: Final = (
    UP,
    Family("forkq_scrape_duration_seconds", "gauge", "How long the questions to Redis took"),
    Family("forkq_jobs", "counter", "Runs of forkq's children by outcome", ("class", "outcome")),
    Family("forkq_job_run_seconds", "histogram", "Run time of successful runs", ("class",)),
    Family("forkq_job_wait_seconds", "histogram", "From the push to the start", ("queue",)),
    Family("forkq_jobs_processed", "counter", "Runs of forkq and Sidekiq, failed ones included"),
    Family("forkq_jobs_failed", "counter", "Failed runs of forkq and Sidekiq"),
    Family(
        "forkq_jobs_ran_twice", "counter", "Jobs that two hosts ran: one was cut off", ("class",)
    ),
    Family("forkq_queue_size", "gauge", "Jobs that wait in the queue", ("queue",)),
    Family("forkq_queue_suspects", "gauge", "Those of them that must run alone", ("queue",)),
    Family("forkq_queue_latency_seconds", "gauge", "Age of the next job", ("queue",)),
    Family("forkq_queue_in_flight", "gauge", "Jobs that are fetched and not settled", ("queue",)),
    Family("forkq_queue_paused", "gauge", "1 if the queue is paused", ("queue",)),
    Family("forkq_queue_served", "gauge", "1 if a living process fetches from it", ("queue",)),
    Family("forkq_queues", "gauge", "Queues that were ever pushed to"),
    Family("forkq_scheduled_size", "gauge", "Jobs that are scheduled for later"),
    Family("forkq_retry_size", "gauge", "Failed jobs that wait for a retry"),
    Family("forkq_dead_size", "gauge", "Jobs that are dead"),
    Family("forkq_batches", "gauge", "Batches and flows at the leader's last look", ("state",)),
    Family("forkq_batch_members_lost", "counter", "Members of batches that were nowhere"),
    Family("forkq_notes_size", "gauge", "Notes that wait for their shard"),
    Family("forkq_clock_lateness_seconds", "gauge", "How late the earliest due job is"),
    Family("forkq_leaders", "gauge", "1 if a clock holds the leader's lease"),
    Family("forkq_leader_info", "gauge", "The host of the leader", ("host",)),
    Family("forkq_children", "gauge", "Children with a heartbeat", _OF_CHILDREN),
    Family("forkq_children_quiet", "gauge", "Children that fetch no more", _OF_CHILDREN),
    Family(
        "forkq_children_refused", "gauge", "Children to which Redis refuses something", _OF_CHILDREN
    ),
    Family("forkq_processors", "gauge", "Processors of the children", _OF_CHILDREN),
    Family("forkq_processors_busy", "gauge", "Processors that run a job", _OF_CHILDREN),
    Family("forkq_children_memory_bytes", "gauge", "Resident memory of children", _OF_CHILDREN),
    Family("forkq_heartbeat_age_seconds", "gauge", "Age of the oldest heartbeat", _OF_CHILDREN),
    Family("forkq_redis_round_trip_seconds", "gauge", "Slowest last round trip", _OF_CHILDREN),
    Family("forkq_sidekiq_processes", "gauge", "Processes of Ruby's Sidekiq with a heartbeat"),
    Family("forkq_child_restarts", "counter", "Children replaced by the master", ("reason",)),
    Family("forkq_child_crashes", "counter", "Children that died", ("reason",)),
    Family("forkq_redis_memory_used_bytes", "gauge", "Memory that Redis uses"),
    Family("forkq_redis_memory_max_bytes", "gauge", "maxmemory of Redis, or its host's memory"),
)
