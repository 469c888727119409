#!lua flags=allow-oom
-- Makes chunks due that wait for one thing, each team in a group of its own; those in a worker's hands are left alone.
-- Whose turn it is the claim decides; here only somebody of every team is put where it looks.
-- KEYS  1 shares of the teams   2 delayed
-- ARGV  1 key prefix   2 group, without the team   3 about so many in all, at least one of each team
-- answer: how many were taken out of their groups
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local groups = {}
for _, team in ipairs(redis.call('HKEYS', KEYS[1])) do
  local group = ARGV[1] .. 'held:' .. ARGV[2] .. ':' .. team
  if redis.call('EXISTS', group) == 1 then groups[#groups + 1] = group end
end
local each, woken = math.max(1, math.floor(ARGV[3] / math.max(1, #groups))), 0
for _, group in ipairs(groups) do
  for _, id in ipairs(redis.call('ZRANGE', group, 0, each - 1)) do
    redis.call('ZADD', KEYS[2], 'XX', now, id)
    redis.call('ZREM', group, id)
    woken = woken + 1
  end
end
return woken
