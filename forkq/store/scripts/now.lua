-- Part of each script that asks for the time more than once.

local started -- when the script began, epoch milliseconds

local function now_in_ms()
  if not started then
    local time = redis.call('TIME')
    started = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return started
end

-- Redis writes a number that a script gives it by a slower way.
local function in_text(milliseconds) return string.format('%d', math.floor(milliseconds)) end
