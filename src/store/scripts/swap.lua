#!lua flags=allow-oom
-- Replaces a value if it still is what it was read as.
-- KEYS  1 value
-- ARGV  1 what was read, '' for none   2 the new value, '' for none   3 its TTL ms
-- answer: 1 done, 0 somebody was faster
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1
