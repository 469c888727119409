#!lua flags=allow-oom
-- Removes a leased member of a queue, unless somebody has queued it again since.
-- KEYS  1 queue
-- ARGV  1 member   2 lease
if redis.call('ZSCORE', KEYS[1], ARGV[1]) == ARGV[2] then return redis.call('ZREM', KEYS[1], ARGV[1]) end
return 0
