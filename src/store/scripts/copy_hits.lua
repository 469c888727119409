#!lua
-- Copies answers of the cache to where a dispatch stages its own, if it still holds its chunk.
-- KEYS  1 fence   2.. cached answer, and where it is staged, in turn
-- ARGV  1 token   2 ms it stays there
-- answer: for each answer 1 if there was one; or {} if another dispatch has the chunk
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {} end
local copied = {}
for i = 2, #KEYS, 2 do
  local there = redis.call('COPY', KEYS[i], KEYS[i + 1], 'REPLACE')
  if there == 1 then redis.call('PEXPIRE', KEYS[i + 1], ARGV[2]) end
  copied[#copied + 1] = there
end
return copied
