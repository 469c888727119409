#!lua flags=allow-oom
-- A chunk takes no more waiters: they came so often that its commit was begun anew again and again.
-- KEYS  1 fence   2 chunk
-- ARGV  1 token
-- answer: 1 closed, 0 another dispatch has it
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[2], 'closed', 1)
return 1
