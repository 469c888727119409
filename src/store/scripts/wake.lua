#!lua flags=allow-oom
-- Makes chunks of a group due that wait for a time; those in a worker's hands are left alone.
-- KEYS  1 the group's held chunks   2 delayed
-- ARGV  1 at most so many
-- answer: how many were taken out of the group
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1)
for _, id in ipairs(held) do
  redis.call('ZADD', KEYS[2], 'XX', now, id)
  redis.call('ZREM', KEYS[1], id)
end
return #held
