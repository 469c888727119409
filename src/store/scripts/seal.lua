#!lua flags=allow-oom
-- Makes a written page the sealed one, once; the last page ends the batch. Without a page: ends a batch whose pages are
-- all sealed and that did not end.
-- KEYS  1 batch   2 sealed pages   3 seal queue   4 open batches   5 chores   6 unanswered pages
--       7 bytes promised to all batches   8.. the frames that were written, of both kinds
-- ARGV  1 batch hex   2 page, or ''   3 name and frame count of what was written   4 skew ms   5 retention ms   6 grace ms
--       7 name and frame count of what the page leaves unanswered, or ''   8 key prefix
-- answer: 'sealed', 'ended', 'unequal' (ended, but its outcomes do not add up to its total), 'already', 'gone', or
--         'torn' (a frame was not there any more: seal again)
-- Frames are written with a short time to live, so that a sealer's death leaves nothing behind; here they lose it.
for i = 8, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then return 'torn' end
end
local exists, member = redis.call('EXISTS', KEYS[1]) == 1, ARGV[1] .. ':' .. ARGV[2]
if not exists then
  redis.call('ZREM', KEYS[3], member)
  return 'gone'
end
if ARGV[2] ~= '' then
  -- First of all: where this fails, for what stands there is no hash, the page stays in the queue.
  local first = redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[3]) == 1
  redis.call('ZREM', KEYS[3], member)
  if not first then return 'already' end
  if ARGV[7] ~= '' then redis.call('HSET', KEYS[6], ARGV[2], ARGV[7]) end
  for i = 8, #KEYS do redis.call('PERSIST', KEYS[i]) end
elseif redis.call('HEXISTS', KEYS[1], 'ended') == 1 then
  return 'already'
end
-- Counted from the pages themselves: a batch whose count was wrong would never end, or too early.
local sealed = redis.call('HLEN', KEYS[2])
redis.call('HSET', KEYS[1], 'sealed', sealed)
if sealed < tonumber(redis.call('HGET', KEYS[1], 'pages')) then return 'sealed' end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[4])
local promised = redis.call('HGET', KEYS[1], 'reserved')
if promised then
  redis.call('HDEL', KEYS[1], 'reserved')
  local left = redis.pcall('DECRBY', KEYS[7], promised)
  if type(left) == 'number' and left <= 0 then redis.call('DEL', KEYS[7]) end
end
redis.call('HSET', KEYS[1], 'ended', now, 'deleted', now + tonumber(ARGV[5]))
redis.call('ZREM', KEYS[4], ARGV[1])
redis.call('ZREM', ARGV[8] .. 'open:' .. (redis.call('HGET', KEYS[1], 'team') or ''), ARGV[1])
redis.call('ZADD', KEYS[5], now + tonumber(ARGV[6]), 'spool:' .. ARGV[1])
redis.call('ZADD', KEYS[5], now + tonumber(ARGV[5]), 'batch:' .. ARGV[1])
local counts, sum = redis.call('HMGET', KEYS[1], 'total', 'succeeded', 'failed', 'canceled', 'expired'), 0
for i = 2, 5 do sum = sum + (tonumber(counts[i]) or 0) end
return tonumber(counts[1]) == sum and 'ended' or 'unequal'
