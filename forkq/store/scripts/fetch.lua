-- Acknowledges finished jobs and takes new ones, in one round trip.
--
-- KEYS  [1] the set of paused queues   [2] the hash of the queues with rules changed at run time
--       then per queue: its list, its in-flight hash. First come the queues to take from, group
--       by group in the capsule's order; after them may come queues to acknowledge in only.
-- ARGV  [1] how many payloads to take at most
--       [2] the owner: a lease is owner .. sequence number
--       [3] the sequence number of the first payload taken; the rest count up from it
--       [4] seed of the draw between groups by weight; 0 takes strictly in order
--       [5] from how many queues to take
--       [6] how many to take at most if a rule is in force: so many start at once; the others are
--           leased ahead
--       then four lists, each preceded by its length; empty lists at the end are left out:
--       done     queue, how many to acknowledge, and their sequence numbers
--       groups   how many queues, weight, 1 to take from them in turn; no group: each queue in order
--       rules    queue, limit, process limit, tokens, per seconds, burst ('': no such rule), and how
--                many queues it blocks, and their numbers
--       held     queue, how many of its jobs the owner keeps in flight after the acknowledgements;
--                no such list: the owner did not count
-- Returns  [1] 1 if a lease to acknowledge was gone
--          [2] 1 if the keys that the caller registered before no longer cover all that it may
--              take next: the script set a mark, or left jobs because of their size; 2 if a rule is in
--              force, and it took no more than [6]
--          [3] if it took less than was wanted, why: three values for each queue that is not just
--              empty. Its number, the reason, and a detail: with `dry` the microseconds until it
--              has a token, with `blocked` the number of the blocking queue, with `damaged` 1 for
--              its list, 2 for its in-flight hash. `damaged` is there also if enough was taken.
--          [4] the damaged keys that it met: each holds another type than it should
--          [5 ..] queue number, payload, queue number, payload, ... in sequence order. Of a payload
--              above 256 KiB the answer has the length instead: the processor reads it once it has
--              noted that the job begins. So a process that dies of its size dies of this very job
--
-- A queue has more keys, named like its in-flight hash: `control` (hash: rules set at run time),
-- `bucket` (string: tokens, and when they were counted), `full` and `busy` (marks), `turn` (hash: the
-- solo children that a rule keeps waiting: fetch_suspects.lua).
--
-- A child that waits for a permit registers a mark, because the hash changes with every job. `full`
-- means: no permit was given back since the queue was full. `busy` means: its jobs in progress have
-- not become fewer. Every script that removes a lease without adding one deletes both marks.
--
-- The server may be full, refuse a command, or hold a damaged key. So jobs are leased before they
-- leave their list, and a damaged queue is skipped while all its payloads are in the list.

--- @include "fetch/arguments"
--- @include "fetch/acknowledge"
--- @include "fetch/move"

-- The fast path: in order, and no rule in force. The functions of the slow path are created in its
-- own branch: that takes as long as the whole fast path (docs/decisions/010).
local changed = want > 0 and call('EXISTS', KEYS[1], KEYS[2]) > 0
if want == 0 or (position == #ARGV and not changed) then
  for queue = 1, queues do
    if want == 0 then break end
    want = want - move(queue, want)
  end
else
  --- @include "fetch/slow_path"
  if rule_count == 0 and not changed then
    --- @include "fetch/room_without_rules"
    --- @include "fetch/take"
    --- @include "fetch/groups"
  else
    if want > free then want, answer[2] = free, 2 end
    --- @include "fetch/rules"
    if changed then
      --- @include "fetch/changed_rules"
    end
    --- @include "fetch/rates"
    --- @include "fetch/room"
    --- @include "fetch/take"
    --- @include "fetch/groups"
    if want > 0 and bytes_left > 0 then
      --- @include "fetch/reasons"
    end
  end
end
--- @include "fetch/finish"
