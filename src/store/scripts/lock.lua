#!lua flags=allow-oom
-- Renews or frees a lock, if it is still ours: what stands there may be another request's lock, or its answer.
-- KEYS  1 record
-- ARGV  1 our lock   2 ms to keep it, or 0 to free it
-- answer: 1 done, 0 not ours any more
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
