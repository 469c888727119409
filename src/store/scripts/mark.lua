#!lua
-- Marks questions as this upload's, as far as nobody has them.
-- KEYS  the marks
-- ARGV  1 batch hex
-- answer: for each key who has it, or '' if it was free
local holders = {}
for i, mark in ipairs(KEYS) do
  local holder = redis.call('GET', mark)
  if not holder then redis.call('SET', mark, ARGV[1]) end
  holders[i] = holder or ''
end
return holders
