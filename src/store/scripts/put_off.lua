#!lua flags=allow-oom
-- Gives a claim back without a step: its chunk cannot be read, and is tried again after a while.
-- It counts as a claim that ran out.
-- KEYS  1 fence   2 claimed   3 delayed   4 chunk
-- ARGV  1 chunk id   2 token   3 delay ms   4 skew ms
if redis.call('GET', KEYS[1]) ~= ARGV[2] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[4])
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('EXISTS', KEYS[4]) == 1 then redis.pcall('HINCRBY', KEYS[4], 'reclaims', 1) end
return redis.call('ZADD', KEYS[3], now + tonumber(ARGV[3]), ARGV[1])
