#!lua flags=allow-oom
-- Makes a leased member of a queue due again after a while, unless somebody has queued it again since.
-- KEYS  1 queue
-- ARGV  1 member   2 lease   3 delay ms   4 skew ms
if redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[4])
return redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[1])
