#!lua
-- The part of a commit that a batch sees; runs inside the commit's MULTI. An ended batch never changes.
-- KEYS  1 batch   2 seal queue   3 delayed
-- ARGV  1 batch hex   2 counter of the state the chunk was in   3 '1' if it settled without one success
--       4 number of pages   then pages   then the number of new chunks   then their numbers   then field, delta ...
if redis.call('HEXISTS', KEYS[1], 'ended') == 1 or redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local at = 5

for _ = 1, tonumber(ARGV[4]) do
  redis.call('ZADD', KEYS[2], now, ARGV[1] .. ':' .. ARGV[at])
  at = at + 1
end
local new = tonumber(ARGV[at])
at = at + 1
for _ = 1, new do
  redis.call('ZADD', KEYS[3], now, ARGV[1] .. '.' .. ARGV[at])
  at = at + 1
end
redis.call('HINCRBY', KEYS[1], ARGV[2], -1)
redis.call('HINCRBY', KEYS[1], 'c_settled', 1)
redis.call('HINCRBY', KEYS[1], 'c_planned', new)
if ARGV[3] == '1' then redis.call('HINCRBY', KEYS[1], 'c_failed', 1) end
for i = at, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
