#!lua
-- Registers a chunk that waits with the one that answers its questions. The commit of that one watches the set.
-- KEYS  1 the chunk that answers   2 its waiters   3 its batch
-- ARGV  1 chunk that waits   2 waiters at most
-- answer: 'ok', 'again' (it is registered already), 'later' (it takes no more), 'moving' (it waits for others itself by now),
--         or 'gone' (it is settled, or was never accepted)
local facts = redis.call('HMGET', KEYS[1], 'state', 'closed')
if not facts[1] or facts[1] == 'settled' or redis.call('EXISTS', KEYS[3]) == 0 then return 'gone' end
if facts[1] == 'joining' then return 'moving' end
if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then return 'again' end
if facts[2] == '1' or redis.call('SCARD', KEYS[2]) >= tonumber(ARGV[2]) then return 'later' end
redis.call('SADD', KEYS[2], ARGV[1])
return 'ok'
