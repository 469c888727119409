#!lua flags=allow-oom
-- Puts right one thing that two looks found wrong, if it still is: whoever was faster has done it already.
-- KEYS  1 batch   2 delayed   3 claimed   4 lanes   5 seal queue   6 sealed pages   7 open batches   8 chores
-- ARGV  1 batch hex   2 key prefix   3 skew ms   4 what   5.. its arguments:
--         'chunk', id, lease ms     in no queue: into the claimed ones if a worker holds it, else due now
--         'twice', id               in several queues: claimed goes before ready, ready before delayed
--         'lane', id                its lane is not among the lanes
--         'page', page              to be looked at by the sealer
--         'counter', name, stored, actual
--         'open', '1' or '0'        whether it belongs among the open batches
--         'chore'                   what removes it at the end of its retention
-- answer: 1 done, 0 nothing was wrong any more
local hex, prefix, what = ARGV[1], ARGV[2], ARGV[4]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[3])
local exists, ended = redis.call('EXISTS', KEYS[1]) == 1, redis.call('HEXISTS', KEYS[1], 'ended') == 1

if what == 'open' then
  local belongs = exists and not ended
  local facts = redis.call('HMGET', KEYS[1], 'team', 'created')
  local teams = prefix .. 'open:' .. (facts[1] or '')
  if ARGV[5] == '0' then
    if belongs then return 0 end
    return math.min(1, redis.call('ZREM', KEYS[7], hex) + redis.call('ZREM', teams, hex))
  end
  if not belongs then return 0 end
  local created = tonumber(facts[2] or nil) or now
  local added = redis.call('ZADD', KEYS[7], 'NX', created, hex)
  if facts[1] then added = added + redis.call('ZADD', teams, 'NX', created, hex) end
  return math.min(1, added)
elseif what == 'chore' then
  if not ended then return 0 end
  return redis.call('ZADD', KEYS[8], 'NX', tonumber(redis.call('HGET', KEYS[1], 'deleted')) or now, 'batch:' .. hex)
end
if not exists or ended then return 0 end

if what == 'page' then
  if redis.call('HEXISTS', KEYS[6], ARGV[5]) == 1 then return 0 end
  return redis.call('ZADD', KEYS[5], 'NX', now, hex .. ':' .. ARGV[5])
elseif what == 'counter' then
  local stored = tonumber(redis.call('HGET', KEYS[1], ARGV[5]) or nil) or 0
  if stored ~= math.floor(stored) then stored = 0 end -- as the look reads it
  if stored ~= tonumber(ARGV[6]) then return 0 end
  redis.call('HSET', KEYS[1], ARGV[5], ARGV[7])
  if string.sub(ARGV[5], 1, 2) == 'w:' then
    local reason = string.sub(ARGV[5], 3)
    if ARGV[7] == '0' then
      redis.call('HDEL', KEYS[1], 'w:' .. reason, 'ws:' .. reason, 'wd:' .. reason)
    else
      redis.call('HSETNX', KEYS[1], 'ws:' .. reason, now)
    end
  end
  return 1
end

local id = ARGV[5]
local facts = redis.call('HMGET', prefix .. 'k:' .. id, 'state', 'lane_id')
if not facts[1] or facts[1] == 'settled' or not facts[2] then return 0 end
local ready = prefix .. 'ready:' .. facts[2]
local claimed, waits = redis.call('ZSCORE', KEYS[3], id), redis.call('ZSCORE', ready, id)
if what == 'chunk' then
  if claimed or waits or redis.call('ZSCORE', KEYS[2], id) then return 0 end
  if redis.call('EXISTS', prefix .. 'k:' .. id .. ':fence') == 1 then
    return redis.call('ZADD', KEYS[3], now + tonumber(ARGV[6]), id)
  end
  return redis.call('ZADD', KEYS[2], now, id)
elseif what == 'twice' then
  local gone = 0
  if claimed or waits then gone = redis.call('ZREM', KEYS[2], id) end
  if claimed and waits then gone = gone + redis.call('ZREM', ready, id) end
  return math.min(gone, 1)
elseif what == 'lane' then
  if not waits then return 0 end
  return redis.call('SADD', KEYS[4], facts[2])
end
return 0
