#!lua flags=allow-oom
-- Makes outcomes of an open page known that no chunk will bring: the last ones, so the page is queued to be sealed.
-- KEYS  1 batch   2 fragments of the page   3 seal queue   4 sealed pages   5.. the frames that were written
-- ARGV  1 batch hex   2 page   3 name and frame count of what was written   4 counter of the batch   5 results
--       6 skew ms
-- answer: 1 done, 0 sealed or closed meanwhile, or a frame was not there any more
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], 'ended') == 1 then return 0 end
if redis.call('HEXISTS', KEYS[4], ARGV[2]) == 1 then return 0 end
for i = 5, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then return 0 end
end
if redis.call('HSETNX', KEYS[2], 'closed', ARGV[3]) == 0 then return 0 end
for i = 5, #KEYS do redis.call('PERSIST', KEYS[i]) end
redis.call('HINCRBY', KEYS[1], ARGV[4], ARGV[5])
local time = redis.call('TIME')
redis.call('ZADD', KEYS[3], time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[6]), ARGV[1] .. ':' .. ARGV[2])
return 1
