#!lua flags=allow-oom
-- Makes an ended batch unknown to its team, and leaves its removal to the sweeper.
-- KEYS  1 batch   2 team index   3 chores
-- ARGV  1 batch hex
-- answer: 'ok', 'running', or 'gone'
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], 'hidden') == 1 then return 'gone' end
if redis.call('HEXISTS', KEYS[1], 'ended') == 0 then return 'running' end
redis.call('HSET', KEYS[1], 'hidden', 1)
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[3], 0, 'batch:' .. ARGV[1])
return 'ok'
