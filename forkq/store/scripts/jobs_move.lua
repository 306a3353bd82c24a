-- Takes jobs out of a set or a queue, and puts each elsewhere in the same step: both, or none.
--
-- KEYS  [1] the set or the list   [2] the set of queue names   [3] the dead set
--       [4] the list that keeps what is deleted   [5] the index of such lists
--       [6] the set of queues with suspects   [7] the queues with marked jobs   [8] how jobs have ended
--       [9 ..] per queue: its list, the list of its suspects; then those of the jobs' effects
-- ARGV  [1] 'set' or 'list', the type of KEYS[1]
--       [2] seconds for which deleted jobs are kept; 0: they are not   [3] a name for KEYS[1]
--       [4] how many lists of deleted jobs there are, with this one
--       [5] where the jobs of a list stood: so many entries were between them and its right end, and
--       [6] they were among so many   [7] the queue whose suspects KEYS[1] has, '' for another list
--       [8] the last of these; '': it is not known where they stand
--       then per job: its member; where to: the number of a key (9 and above: a list, 3: the dead set,
--       1: back to where it is), 0: nowhere; behind the number and a space its effects (effects.lua);
--       the new payload (for 0: how it ends, if that counts); its score, '' for the same; the queue
--       (for 0: its class)
-- Returns for each job 1: done, 2: done, but another job has its lock, 0: it was no longer there, -1: Redis refused its new place, so it was
-- put back, or the set has its new payload already, -2: [8] is no longer there, so it is not known
-- where the job is.
--
-- The dead set is not trimmed here: a person who moves one job must not lose others. bury.lua and
-- recover.lua trim it.
-- Only this very member is moved. The first write is a removal, so that a full server takes the rest.
-- Redis does not undo a script that fails: so the script catches what may fail after the removal. A
-- suspect goes to the queue's own list where the list of suspects is damaged.

local in_set, kept_for = ARGV[1] == 'set', tonumber(ARGV[2])
local done, kept = {}, {}
local unpack = table.unpack or unpack -- Lua 5.4 has the former

--- @include "jobs_move/suspects"
--- @include "jobs_move/list"
--- @include "marked"
--- @include "effects"

-- The score of the member that was removed, or its place in a list; nothing if it was not there.
local function take(member)
  if not in_set then return take_from_list(member) end
  local score = redis.call('ZSCORE', KEYS[1], member)
  return score and redis.call('ZREM', KEYS[1], member) == 1 and score
end

local function back(member, score)
  if not in_set then return back_to_list(member, score) end
  redis.call('ZADD', KEYS[1], score, member)
end

local function put(to, payload, score, queue)
  if to == 3 then return not is_refused('ZADD', KEYS[3], score, payload) end
  redis.pcall('SADD', KEYS[2], queue)
  note_if_marked(KEYS[7], queue, payload)
  if to % 2 == 0 then
    if add_suspect('LPUSH', KEYS[to], KEYS[6], queue, payload) then return true end
    to = to - 1
  end
  return not is_refused('LPUSH', KEYS[to], payload)
end

local function keep(member, score)
  kept[#kept + 1] = in_set and score or ARGV[7] ~= '' and 'suspect' or ''
  kept[#kept + 1] = member
end

local function replace(member, payload, score)
  if not in_set then return replace_in_list(member, payload) end
  if payload ~= member and redis.call('ZSCORE', KEYS[1], payload) then return -1 end
  local before = take(member)
  if before then redis.call('ZADD', KEYS[1], score == '' and before or score, payload) end
  return before and 1 or 0
end

local function move(member, to, effects, payload, score, queue)
  if to == 1 then return replace(member, payload, score) end
  local looks = look_at(effects)
  local before = take(member)
  if before == LOST then return -2 end
  if not before then return 0 end
  if to == 0 then
    if kept_for > 0 then keep(member, before) end
    if payload ~= '' then count_end(KEYS[8], payload, queue) end
  elseif not put(to, payload, score, queue) then
    back(member, before)
    return -1
  end
  return write(looks) > 0 and 2 or 1
end

if not in_set and ARGV[8] ~= '' then find_places() end
for i = 9, #ARGV, 5 do
  local to, effects = ARGV[i + 1]:match('^(%d+) ?(.*)$')
  done[#done + 1] = move(ARGV[i], tonumber(to), effects, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
end
remove_marks()
if ARGV[7] ~= '' then drop_name_if_empty(KEYS[1], KEYS[6], ARGV[7]) end
if #kept > 0 then
  redis.call('RPUSH', KEYS[4], unpack(kept))
  redis.call('EXPIRE', KEYS[4], kept_for)
  redis.call('HSET', KEYS[5], 'from', ARGV[3], 'lists', ARGV[4])
  redis.call('EXPIRE', KEYS[5], kept_for)
end
return done
