#!lua
-- Marks questions as this upload's, as far as nobody has them.
-- KEYS  1 upload   2 uploads   3.. the marks
-- ARGV  1 batch hex   2 skew ms
-- answer: for each key who has it, or '' if it was free; or {} if the upload's right to its pages is gone
-- Notes when, by Redis's own clock: whoever waits for the marks gives up on an upload that went silent at this.
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return {} end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'marked', time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[2]))
local holders = {}
for i = 3, #KEYS do
  local holder = redis.call('GET', KEYS[i])
  if not holder then redis.call('SET', KEYS[i], ARGV[1]) end
  holders[i - 2] = holder or ''
end
return holders
