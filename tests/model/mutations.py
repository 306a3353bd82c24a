"""Changes of the scripts that must not go unnoticed: each breaks a promise in a small world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import worlds
from .store import Store, every_script
from .world import World


@dataclass(frozen=True)
class Mutation:
    """``old`` becomes ``new`` in each script that has it, or only in that of the name ``script``.
    ``world`` is the smallest one known to show it."""

    what: str
    old: str
    new: str
    world: World
    script: str = ""

    def store(self) -> Store:
        """A store with the changed scripts."""
        old, new = self.old.encode(), self.new.encode()
        changed = {
            name: script.text.replace(old, new)
            for name, script in every_script().items()
            if old in script.text and self.script in ("", name)
        }
        assert changed, f"no script has the text {self.old!r}"
        return Store(changed)


_DROPS_LEASE: Final = "if not damaged then redis.call('HDEL', KEYS[1], ARGV[1]) end"
_ADDS_RETRY: Final = (
    "if not effects.is_replaced then redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3]) end"
)
_NOTES_ENTRY: Final = "set_entry = { state_in(KEYS[2]), ARGV[3] }"
_WAKES: Final = "redis.call('DEL', KEYS[3])"

MUTATIONS: Final = (
    Mutation(
        "an acknowledgement removes no lease",
        "local found = pcall('HDEL', key, unpack(leases))",
        "local found = count",
        worlds.PLAIN,
    ),
    Mutation(
        "a job is leased and stays in its queue",
        "if pcall('LTRIM', list, '0', stay).err then",
        "if false then",
        worlds.PLAIN,
    ),
    Mutation(
        "a job leaves its queue and is not leased",
        "if type(pcall('HSET', key, unpack(fields))) == 'table' then",
        "if false then",
        worlds.PLAIN,
    ),
    Mutation(
        "an acknowledgement does not wake who waits for a permit",
        "call('DEL', KEYS[2 * ARGV[7] + 2 + (i + 1) / 2])",
        "",
        worlds.LIMIT_AND_LOSS,
    ),
    Mutation(
        "a limit lets one job more start",
        "local permits = rule.limit - in_progress(queue)",
        "local permits = rule.limit - in_progress(queue) + 1",
        worlds.LIMIT,
    ),
    Mutation(
        "a fetch does not look at pauses",
        "paused[queue] = is_paused[queue - first + 1] == 1",
        "paused[queue] = false",
        worlds.PAUSES,
    ),
    Mutation(
        "a blocking queue blocks nothing",
        "if blocker[queue] then return reject(queue, 'blocked') end",
        "",
        worlds.BLOCKING,
    ),
    Mutation("a retry leaves the lease", _DROPS_LEASE, "", worlds.RETRIES, "retry"),
    Mutation(
        "the lease is removed before the retry is added",
        f"{_ADDS_RETRY}\n{_NOTES_ENTRY}\nwrite(effects)\n{_DROPS_LEASE}",
        f"{_DROPS_LEASE}\n{_ADDS_RETRY}",
        worlds.DAMAGED,
        "retry",
    ),
    Mutation(
        "a retry does not ask whether the lease is there",
        "local leased = redis.pcall('HEXISTS', KEYS[1], ARGV[1])",
        "local leased = 1",
        worlds.RETRIES,
        "retry",
    ),
    Mutation(
        "a retry does not wake who waits for a permit",
        _WAKES,
        "",
        worlds.RETRY_AT_LIMIT,
        "retry",
    ),
    Mutation(
        "a burial does not wake who waits for a permit", _WAKES, "", worlds.FAILS_AT_LIMIT, "bury"
    ),
    Mutation("a burial leaves the lease", _DROPS_LEASE, "", worlds.BURIAL, "bury"),
    Mutation(
        "a burial trims the dead set to nothing",
        "-tonumber(ARGV[5]) - 1)",
        "-1)",
        worlds.BURIAL,
        "bury",
    ),
    Mutation(
        "a returned job keeps its lease",
        "redis.call('HDEL', inflight, job.lease)",
        "",
        worlds.LOST_REPLIES,
        "requeue",
    ),
    Mutation(
        "the jobs of other children are returned",
        "if lease:sub(1, #owner) == owner and old",
        "if old",
        worlds.LOSS_IN_TWO,
        "requeue",
    ),
    Mutation(
        "a rescue leaves the lease", "call('HDEL', inflight, lease)", "", worlds.DEATH, "recover"
    ),
    Mutation("a rescue does not name the queue of a suspect", "name(queue, 5)", "", worlds.DEATH),
    Mutation(
        "a rescue does not ask whether the lease is there",
        "local before = call('HGET', inflight, lease)\n",
        "local before = call('HGET', inflight, lease) or ARGV[i + 5]\n",
        worlds.LATE,
    ),
    Mutation(
        "a rescue takes the leases of other children",
        "local sequence = lease:sub(1, #owner) == owner and (tonumber(lease:sub(#owner + 1)) or 0)",
        "local sequence = 1",
        worlds.DEATHS_IN_TWO,
    ),
    Mutation(
        "a suspect that is moved aside keeps its lease",
        "redis.call('HDEL', KEYS[1], ARGV[1])\nif is_suspect or is_held",
        "if is_suspect or is_held",
        worlds.SUSPECTS,
        "isolate",
    ),
    Mutation(
        "a suspect's queue is not named",
        "if is_suspect or is_held then redis.pcall('SADD', KEYS[3], ARGV[2]) end",
        "",
        worlds.SUSPECTS,
        "isolate",
    ),
    Mutation(
        "a queue with suspects is forgotten",
        "if call('EXISTS', KEYS[2 * queue + 1]) == 0 then pcall(",
        "if true then pcall(",
        worlds.POISONS,
        "fetch_suspects",
    ),
    Mutation(
        "a due job is moved though it is gone",
        "if not member or redis.call('ZREM', KEYS[1], member) == 0 then return end",
        "if not member then return end\n  redis.call('ZREM', KEYS[1], member)",
        worlds.DELETED,
    ),
    Mutation(
        "a due job goes to the suspects",
        "local PLAIN, ALONE = 5, 6",
        "local PLAIN, ALONE = 6, 6",
        worlds.RETRIES,
    ),
    Mutation(
        "a job that is moved stays where it was",
        "return score and redis.call('ZREM', KEYS[1], member) == 1 and score",
        "return score",
        worlds.SECOND_LIFE,
    ),
    Mutation(
        "a changed rule wakes no child",
        "redis.call('HINCRBY', KEYS[1], ARGV[1], 1)",
        "redis.call('HSET', KEYS[1], ARGV[1], 1)",
        worlds.LIMITS,
    ),
    Mutation(
        "a mark that is new is not told",
        "  if answer[2] == 0 then answer[2] = 1 end\nend\n\nlocal function detail_of",
        "end\n\nlocal function detail_of",
        worlds.TWO_FAILURES,
    ),
    Mutation(
        "a child that is blocked waits without a mark",
        "    set_mark(blocker[queue])\n",
        "",
        worlds.BLOCKS_AND_FAILS,
    ),
    Mutation(
        "a child without a permit waits without a mark",
        "  if reason == 'full' then set_mark(queue) end\n",
        "",
        worlds.RETRY_AT_LIMIT,
    ),
    Mutation(
        "a solo child leaves the permit to solo children",
        "if is_solo or free > ENOUGH then return 0 end",
        "if free > ENOUGH then return 0 end",
        worlds.SUSPECT_AT_LIMIT,
    ),
    Mutation(
        "a fetch spends no token",
        "  call('SET', KEYS[places[queue] + BUCKET], value, 'PX', lasts)\n",
        "",
        worlds.RATE,
    ),
    Mutation(
        "a rate lets one job more start",
        "local tokens = math.floor(bucket_of(queue).tokens)",
        "local tokens = math.floor(bucket_of(queue).tokens) + 1",
        worlds.RATE,
    ),
    Mutation(
        "a push does not name the queue of a marked job",
        "if type(reply) == 'number' and first ~= ''",
        "if false",
        worlds.EXPIRY,
        "push",
    ),
    Mutation(
        "a push gives twice the time",
        "now_in_ms() / 1000 + after",
        "now_in_ms() / 1000 + 2 * after",
        worlds.EXPIRY,
        "push",
    ),
    Mutation(
        "a clock does not name the queue of a marked job",
        "    for _, payload in ipairs(batch) do note_if_marked(KEYS[5], name, payload) end\n",
        "",
        worlds.SCHEDULED,
        "due_jobs",
    ),
    Mutation(
        "a clock does not count what has expired",
        "return count_end(KEYS[6], 'expired', payload)",
        "return",
        worlds.RETRY_EXPIRES,
        "due_jobs",
    ),
    Mutation(
        "an end does not ask whether the lease is there",
        "if removed == 0 then return 0 end",
        "",
        worlds.DISCARD,
        "end",
    ),
    Mutation("an end leaves the lease", "'HDEL', KEYS[1]", "'HLEN', KEYS[1]", worlds.EXPIRY, "end"),
    Mutation(
        "an end does not wake who waits for a permit",
        "redis.pcall('DEL', KEYS[2])",
        "",
        worlds.EXPIRY_AT_LIMIT,
        "end",
    ),
    Mutation(
        "an end without a run keeps the token",
        "if unrun == '1' then give_token_back(KEYS[3]) end",
        "",
        worlds.EXPIRY_AT_RATE,
        "end",
    ),
    Mutation(
        "an end after a run gives the token back",
        "if unrun == '1' then give_token_back(KEYS[3]) end",
        "give_token_back(KEYS[3])",
        worlds.TOO_LATE,
        "end",
    ),
    Mutation(
        "a look ends jobs too early",
        "local now = seconds + micros / 1000000 -- only compared",
        "local now = seconds + 1000",
        worlds.TWO_EXPIRE,
        "expired_jobs",
    ),
    Mutation(
        "a look goes by the text alone",
        "if type(moment) ~= 'number' or moment > now then return nil end",
        "if type(moment) ~= 'number' or moment > now then return '?' end",
        worlds.EXPIRY,
        "expired_jobs",
    ),
    Mutation(
        "a look ends the neighbour",
        "redis.call('LSET', KEYS[1], -(from + looked), MARK)",
        "redis.call('LSET', KEYS[1], from + looked - 1, MARK)",
        worlds.EXPIRY,
        "expired_jobs",
    ),
    Mutation(
        "a look counts no ends",
        "  count_end(KEYS[2], 'expired', class)\n",
        "",
        worlds.EXPIRY,
        "expired_jobs",
    ),
    Mutation(
        "a queue with leased jobs alone is forgotten",
        "redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4])",
        "redis.call('EXISTS', KEYS[2], KEYS[3])",
        worlds.TWO_EXPIRE,
        "marked_look",
    ),
    Mutation(
        "a queue with suspects alone is forgotten",
        "redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4])",
        "redis.call('EXISTS', KEYS[3], KEYS[4])",
        worlds.EXPIRY_AND_DEATH,
        "marked_look",
    ),
    Mutation(
        "a look is the last one",
        "redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])",
        "redis.call('ZADD', KEYS[1], '+inf', ARGV[1])",
        worlds.PAUSE_AND_LOSS,
        "marked_look",
    ),
    Mutation("a snooze leaves the lease", _DROPS_LEASE, "", worlds.SNOOZE, "retry"),
    Mutation(
        "a snooze is not counted",
        "if outcome and outcome ~= '' then count_end(KEYS[5], outcome, ARGV[6]) end",
        "",
        worlds.SNOOZE,
        "retry",
    ),
    Mutation(
        "a push does not look at its lock",
        "if was_free or holder == jid then return nil end",
        "if true then return nil end",
        worlds.UNIQUE,
        "push",
    ),
    Mutation("a push takes no lock", "  take_lock(each[1]", "  tostring(each[1]", worlds.UNIQUE),
    Mutation(
        "an end leaves its lock",
        "if holder == effect[3] then redis.pcall('DEL', lock) end",
        "",
        worlds.UNIQUE,
    ),
    Mutation(
        "a job that expires leaves its lock",
        "if to == 0 then",
        "if to == 0 then looks = {}",
        worlds.UNIQUE_EXPIRES,
        "jobs_move",
    ),
    Mutation(
        "a push runs beside the job that runs",
        "if found.jid and not set then return note_newest",
        "if found.jid and not set and found.state ~= 'running' then return note_newest",
        worlds.LATEST,
    ),
    Mutation(
        "the entry in a set stays beside the newest job",
        "redis.pcall('ZREM', set, found.member)",
        "",
        worlds.LATEST_SCHEDULED,
    ),
    Mutation(
        "a job that gives way is not counted",
        "  count_end(place.totals, 'replaced', job.class)\n",
        "",
        worlds.LATEST,
    ),
    Mutation(
        "a ticket runs the job that came first",
        "  if found.next then\n    redis.call",
        "  if false then\n    redis.call",
        worlds.LATEST,
    ),
    Mutation(
        "an end forgets the newest job",
        "      enter_newest(place, found, job_of(effect))\n    else\n",
        "      free_ticket(place)\n    else\n",
        worlds.LATEST,
        "end",
    ),
    Mutation(
        "an end of the last job leaves its lock",
        "      free_ticket(place)\n",
        "",
        worlds.LATEST,
        "end",
    ),
    Mutation(
        "the newest job stays in the lock when it gets an entry",
        "redis.pcall('DEL', place.lock)\n  redis.pcall('HSET'",
        "redis.pcall('HSET'",
        worlds.LATEST,
        "end",
    ),
    Mutation(
        "a failed job waits before the newest one",
        "if not effects.is_replaced then",
        "if true then",
        worlds.LATEST_RETRIED,
        "retry",
    ),
    Mutation(
        "a failed job goes and is not counted",
        "effects.is_replaced and 'replaced' or ARGV[5]",
        "ARGV[5]",
        worlds.LATEST_RETRIED,
        "retry",
    ),
    Mutation(
        "a cancelled job is not counted",
        "if payload ~= '' then count_end(KEYS[8], payload, queue) end",
        "",
        worlds.CANCELS,
        "jobs_move",
    ),
    Mutation(
        "a cancelled newest job stays in its lock",
        "redis.pcall('HDEL', lock, 'next', 'next_jid', 'next_at', 'next_queue')",
        "",
        worlds.CANCELS_NEWEST,
    ),
    Mutation(
        "a push does not note its jid",
        "    for _, key in ipairs(new) do note_push(key) end\n",
        "",
        worlds.ONCE,
        "push",
    ),
    Mutation(
        "a debounced push leaves the one before it",
        "    redis.pcall('ZREM', schedule, member)\n",
        "",
        worlds.DEBOUNCED,
        "push_debounced",
    ),
    Mutation(
        "a debounced push counts what gives way twice",
        "    count_end(totals, 'replaced', job.class)\n",
        "    count_end(totals, 'replaced', job.class)\n" * 2,
        worlds.DEBOUNCED,
        "push_debounced",
    ),
    Mutation(
        "a debounced push replaces what is beyond its latest time",
        "first and now < first + most and score_of(schedule, member)",
        "first and score_of(schedule, member)",
        worlds.DEBOUNCED,
        "push_debounced",
    ),
    Mutation(
        "a debounced push notes no entry",
        "  if not found.err then hold_debounced(lock, job, payload, first, due, latest) end\n",
        "",
        worlds.DEBOUNCED,
        "push_debounced",
    ),
    Mutation(
        "a start that arrives late takes a lock",
        "return is_leased == 1 or nil",
        "return true",
        worlds.UNIQUE_LATE,
        "effects_alone",
    ),
    Mutation(
        "a rescue writes what it has read over what has changed",
        "if read ~= '' and before:sub(keep) ~= read then",
        "if false then",
        worlds.LATEST_LATE,
        "recover",
    ),
    Mutation(
        "a cancel ends what runs",
        "local removed = redis.pcall('HDEL', KEYS[1], lease)",
        "local removed = redis.pcall('HDEL', KEYS[1], lease); removed = 1",
        worlds.CANCEL_AND_LOSS,
        "end",
    ),
    Mutation(
        "a job that goes back keeps its lease",
        "redis.call('HDEL', KEYS[3], ARGV[1])",
        "",
        worlds.CURSOR,
        "cursor_return",
    ),
    Mutation(
        "a job goes back without its cursor",
        "redis.pcall('HSET', KEYS[5], unpack(ARGV, 6))",
        "false",
        worlds.CURSOR,
        "cursor_return",
    ),
    Mutation("an end leaves the cursor", "redis.pcall('DEL', cursor)", "", worlds.CURSOR, "end"),
    Mutation(
        "a save does not ask whether the lease is there",
        "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return {} end",
        "",
        worlds.CURSOR_LATE,
        "cursor_save",
    ),
    Mutation(
        "a save that comes late is taken",
        "local saved = comes_late() or",
        "local saved =",
        worlds.CURSOR_LATE,
        "cursor_save",
    ),
    Mutation(
        "a return does not ask whether the lease is there",
        "if redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then return 0 end",
        "",
        worlds.CURSOR_AND_LOSS,
        "cursor_return",
    ),
)
