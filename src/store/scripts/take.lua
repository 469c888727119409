#!lua flags=allow-oom
-- Leases the first due member of a queue by moving its time; whoever finishes it removes it if the time is still his.
-- KEYS  1 queue
-- ARGV  1 lease ms   2 skew ms
-- answer: nil, or { member, lease }
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[2])
local member = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1)[1]
if not member then return nil end
local lease = tostring(now + tonumber(ARGV[1]))
redis.call('ZADD', KEYS[1], lease, member)
return { member, lease }
