#!lua flags=allow-oom
-- Takes an upload's right to its pages, if it has been idle for so long; only then may they be removed.
-- KEYS  1 uploads
-- ARGV  1 batch hex   2 idle ms   3 skew ms
-- answer: 'lapsed' (ours to remove), 'busy', or 'gone' (accepted or already removed)
local at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not at then return 'gone' end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[3])
if tonumber(at) + tonumber(ARGV[2]) > now then return 'busy' end
redis.call('ZREM', KEYS[1], ARGV[1])
return 'lapsed'
