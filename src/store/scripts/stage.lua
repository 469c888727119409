#!lua
-- Stages answers of a chunk, if this dispatch still holds it: whoever lost it leaves nothing behind that nobody looks for.
-- KEYS  1 fence   2.. where each answer is staged
-- ARGV  1 token   2 ms it stays there   3.. the answers
-- answer: 1 staged, 0 lost
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for i = 2, #KEYS do redis.call('SET', KEYS[i], ARGV[i + 1], 'PX', ARGV[2]) end
return 1
