#!lua
-- The part of a commit that a batch sees; runs inside the commit's MULTI. An ended batch never changes.
-- KEYS  1 batch   2 seal queue   3 delayed   4 chunk
-- ARGV  1 batch hex   2 counter of the state the chunk was in, or '' if it is none of the batch's own   3 '1' if it settled without one success
--       4 chunk id   5 key prefix
--       6 number of pages   then pages   then the number of new chunks   then their numbers   then field, delta ...
local facts = redis.call('HMGET', KEYS[4], 'wait', 'held', 'prompts', 'reserved')
if facts[2] and facts[2] ~= '' then redis.call('ZREM', ARGV[5] .. 'held:' .. facts[2], ARGV[4]) end
redis.call('HDEL', KEYS[4], 'wait', 'held', 'reserved')
if redis.call('HEXISTS', KEYS[1], 'ended') == 1 or redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
-- A counter that is no number stops nothing: an error here would cut the outcomes off, and leave the rest of the MULTI.
local function add(field, delta)
  local sum = redis.pcall('HINCRBY', KEYS[1], field, delta)
  return type(sum) == 'number' and sum or 0
end
if facts[1] and facts[1] ~= '' and add('w:' .. facts[1], -(tonumber(facts[3] or nil) or 0)) <= 0 then
  redis.call('HDEL', KEYS[1], 'w:' .. facts[1], 'ws:' .. facts[1], 'wd:' .. facts[1])
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local at = 7
for _ = 1, tonumber(ARGV[6]) do
  redis.call('ZADD', KEYS[2], now, ARGV[1] .. ':' .. ARGV[at])
  at = at + 1
end
-- What was promised to the chunk is there now, or goes on to the chunks that ask again.
local freed = tonumber(facts[4] or '0')
local new, planned = tonumber(ARGV[at]), 0
at = at + 1
for _ = 1, new do
  local id = ARGV[1] .. '.' .. ARGV[at]
  redis.call('ZADD', KEYS[3], now, id)
  local follow_up = redis.call('HMGET', ARGV[5] .. 'k:' .. id, 'reserved', 'state')
  freed = freed - tonumber(follow_up[1] or '0')
  if follow_up[2] == 'planned' then planned = planned + 1 end
  at = at + 1
end
if freed ~= 0 then
  local back = string.format('%.0f', -freed)
  add('reserved', back)
  local left = redis.pcall('INCRBY', ARGV[5] .. 'reserved', back)
  if type(left) == 'number' and left <= 0 then redis.call('DEL', ARGV[5] .. 'reserved') end
end
add('c_planned', planned)
if ARGV[2] ~= '' then
  add(ARGV[2], -1)
  add('c_settled', 1)
  if ARGV[3] == '1' then add('c_failed', 1) end
end
for i = at, #ARGV, 2 do add(ARGV[i], ARGV[i + 1]) end
return 1
