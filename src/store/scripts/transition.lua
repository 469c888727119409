#!lua flags=allow-oom
-- One step in a chunk's life, field by field, by the dispatch that holds it.
-- KEYS  1 chunk   2 fence   3 batch   4 claimed   5 delayed
-- ARGV  1 chunk id   2 token   3 states it may come from, comma-separated   4 state it goes to
--       5 'hold', or the delay in ms after which it may be claimed again   6 skew ms
--         (at once, if the batch was cancelled meanwhile and all is well: a joining, planned or asked chunk has only to be settled, a
--         running one only to be cancelled; a doubt, a back-off, an adopted batch and a shut account keep their wait)
--       7 'asking' if this step leads to a paid call: refused when the batch wants no more
--       8 why it waits, or '': what it waited for stays while it is held and is over once it is given back
--       9 that in detail   10 group it may be woken with, or ''   11 key prefix   12.. field, value
-- answer: 'ok', 'lost' (another dispatch has it), 'ending' (the batch was cancelled), or the state it was found in
if redis.call('GET', KEYS[2]) ~= ARGV[2] then return 'lost' end
local state = redis.call('HGET', KEYS[1], 'state')
if not state or not string.find(',' .. ARGV[3] .. ',', ',' .. state .. ',', 1, true) then return state or 'gone' end
local cancel = redis.call('HGET', KEYS[3], 'cancel') == '1'
if ARGV[7] == 'asking' and cancel then return 'ending' end

local counter = { planned = 'c_planned', submitting = 'c_submitting', in_doubt = 'c_submitting',
                  asking = 'c_running', running = 'c_running', harvested = 'c_running' }
local before_it, after_it = counter[state], counter[ARGV[4]] -- none while others ask for it
if before_it ~= after_it and redis.call('EXISTS', KEYS[3]) == 1 then
  if before_it then redis.call('HINCRBY', KEYS[3], before_it, -1) end
  if after_it then redis.call('HINCRBY', KEYS[3], after_it, 1) end
end
redis.call('HSET', KEYS[1], 'state', ARGV[4])
if ARGV[5] ~= 'hold' then redis.call('HSET', KEYS[1], 'reclaims', 0) end
for i = 12, #ARGV, 2 do
  if ARGV[i] == 'reported' and redis.call('EXISTS', KEYS[3]) == 1 then
    local before = tonumber(redis.call('HGET', KEYS[1], 'reported') or '0')
    redis.call('HINCRBY', KEYS[3], 'reported', tonumber(ARGV[i + 1]) - before)
  end
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[6])
local reason = ARGV[8]
if reason ~= '' or ARGV[5] ~= 'hold' then
  local facts = redis.call('HMGET', KEYS[1], 'wait', 'held', 'prompts', 'deadline')
  local before, group = facts[1] or '', facts[2] or ''
  if redis.call('EXISTS', KEYS[3]) == 1 then
    if before ~= reason and before ~= '' and redis.call('HINCRBY', KEYS[3], 'w:' .. before, -facts[3]) <= 0 then
      redis.call('HDEL', KEYS[3], 'w:' .. before, 'ws:' .. before, 'wd:' .. before)
    end
    if before ~= reason and reason ~= '' then redis.call('HINCRBY', KEYS[3], 'w:' .. reason, facts[3]) end
    if reason ~= '' then
      redis.call('HSETNX', KEYS[3], 'ws:' .. reason, now)
      redis.call('HSET', KEYS[3], 'wd:' .. reason, ARGV[9])
    end
  end
  if group ~= ARGV[10] and group ~= '' then redis.call('ZREM', ARGV[11] .. 'held:' .. group, ARGV[1]) end
  if ARGV[10] ~= '' then redis.call('ZADD', ARGV[11] .. 'held:' .. ARGV[10], facts[4] or 0, ARGV[1]) end
  redis.call('HSET', KEYS[1], 'wait', reason, 'held', ARGV[10])
end

if ARGV[5] ~= 'hold' then
  local delay = tonumber(ARGV[5])
  if cancel then
    local facts = redis.call('HMGET', KEYS[1], 'cancel_sent', 'fails', 'adopted')
    local well = facts[1] ~= '1' and (facts[2] or '0') == '0' and not facts[3] and reason == ''
    local unsent = ARGV[4] == 'joining' or ARGV[4] == 'planned' or ARGV[4] == 'asking'
    if unsent or (ARGV[4] == 'running' and well) then delay = 0 end
  end
  redis.call('DEL', KEYS[2])
  redis.call('ZREM', KEYS[4], ARGV[1])
  redis.call('ZADD', KEYS[5], now + delay, ARGV[1])
end
return 'ok'
