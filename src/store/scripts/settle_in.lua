#!lua flags=allow-oom
-- Makes this Redis somebody's home, if it is nobody's yet and no copy.
-- KEYS  1 home   2 mark of a copy
-- ARGV  1 deployment   2 place   3 now, RFC 3339
-- answer: 1 if it became one
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
redis.call('HSET', KEYS[1], 'deployment', ARGV[1], 'since', ARGV[3], 'place:' .. ARGV[2], ARGV[3])
return 1
