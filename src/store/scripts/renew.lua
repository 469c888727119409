#!lua flags=allow-oom
-- Extends a claim, if it is still this dispatch's.
-- KEYS  1 fence   2 claimed
-- ARGV  1 chunk id   2 token   3 lease ms   4 skew ms
-- answer: 1 renewed, 0 lost
if redis.call('GET', KEYS[1]) ~= ARGV[2] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[4])
redis.call('ZADD', KEYS[2], 'XX', now + tonumber(ARGV[3]), ARGV[1])
return 1
