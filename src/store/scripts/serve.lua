#!lua
-- Serves a chunk that waits with what the one it waits for was told; runs inside that one's MULTI. It is settled if nothing
-- is left; else it is to find out who answers the rest.
-- KEYS  1 the chunk that waits   2 its items   3 its fence   4 its batch   5 claimed   6 delayed   7 seal queue
-- ARGV  1 its id   2 the chunk that answers   3 key prefix   4 batch hex   5 name its fragments have in their directories
--       6 the items left, or ''   7 how many   8 their results   9 their wire bytes   10 when it is settled, ms
--       11 number of pages   then for each: page, name and frame count   then field, delta of the batch ...
-- answer: 1 served, 0 it waits no more, or for another
local facts = redis.call('HMGET', KEYS[1], 'state', 'owner', 'prompts', 'reserved', 'wait', 'lane_id')
if facts[1] ~= 'joining' or facts[2] ~= ARGV[2] then return 0 end
local prefix, left = ARGV[3], tonumber(ARGV[7])
local prompts, reserved = tonumber(facts[3] or nil) or 0, tonumber(facts[4] or nil) or 0
local kept = prompts > 0 and math.floor(reserved * left / prompts) or 0
redis.call('DEL', KEYS[3])
redis.call('ZREM', KEYS[5], ARGV[1])
if facts[6] then redis.call('ZREM', prefix .. 'ready:' .. facts[6], ARGV[1]) end
redis.call('HDEL', KEYS[1], 'owner', 'wait')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if left == 0 then
  redis.call('HSET', KEYS[1], 'state', 'settled', 'settled_at', ARGV[10])
  redis.call('HDEL', KEYS[1], 'reserved')
  redis.call('ZREM', KEYS[6], ARGV[1])
else
  redis.call('SET', KEYS[2], ARGV[6])
  redis.call('HSET', KEYS[1], 'prompts', left, 'results', ARGV[8], 'wire_bytes', ARGV[9],
             'reserved', string.format('%.0f', kept))
  redis.call('ZADD', KEYS[6], now, ARGV[1])
end
if redis.call('HEXISTS', KEYS[4], 'ended') == 1 or redis.call('EXISTS', KEYS[4]) == 0 then return 0 end
-- A counter that is no number stops nothing: an error here would cut the outcomes off, and leave the rest of the MULTI.
local function add(field, delta)
  local sum = redis.pcall('HINCRBY', KEYS[4], field, delta)
  return type(sum) == 'number' and sum or 0
end
local wait = facts[5] or ''
if wait ~= '' and add('w:' .. wait, -prompts) <= 0 then
  redis.call('HDEL', KEYS[4], 'w:' .. wait, 'ws:' .. wait, 'wd:' .. wait)
end
local freed = reserved - kept
if freed > 0 then
  local back = string.format('%.0f', -freed)
  add('reserved', back)
  local promised = redis.pcall('INCRBY', prefix .. 'reserved', back)
  if type(promised) == 'number' and promised <= 0 then redis.call('DEL', prefix .. 'reserved') end
end
local at, own = 12, prefix .. 'b:' .. ARGV[4] .. ':f:'
for _ = 1, tonumber(ARGV[11]) do
  local page, row = ARGV[at], ARGV[at + 1]
  local name, frames = string.match(row, '^(.*):(%d+)$')
  redis.call('HSET', own .. page, ARGV[5], row)
  for frame = 0, tonumber(frames) - 1 do redis.call('PERSIST', own .. page .. ':' .. name .. ':' .. frame) end
  redis.call('ZADD', KEYS[7], now, ARGV[4] .. ':' .. page)
  at = at + 2
end
for i = at, #ARGV, 2 do add(ARGV[i], ARGV[i + 1]) end
return 1
