#!lua
-- Notes what a server said of some questions of a chunk that is asked one by one, if this dispatch still holds it.
-- KEYS  1 fence   2 what was said   3 chunk   4 batch   5.. where each answer is staged
-- ARGV  1 token   2 ms an answer stays staged   3 how many of the words are the last on their question
--       4 number of words   then key, word ...   then the answers, as many as there are names for them
-- answer: 1 noted, 0 lost
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local again = redis.call('HGET', KEYS[2], ARGV[5]) == ARGV[6] -- a lost reply: these words are counted already
local at = 5
for _ = 1, tonumber(ARGV[4]) do
  redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  at = at + 2
end
for i = 5, #KEYS do redis.call('SET', KEYS[i], ARGV[at + i - 5], 'PX', ARGV[2]) end
if again then return 1 end
redis.call('HINCRBY', KEYS[3], 'reported', ARGV[3])
if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('HINCRBY', KEYS[4], 'reported', ARGV[3]) end
return 1
