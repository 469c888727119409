#!lua
-- Finds out who answers each question of a chunk that waits, and gives it those that nobody will.
-- KEYS  1 fence   2 uploads   3.. the marks
-- ARGV  1 chunk id   2 its batch's hex   3 token   4 key prefix   5 skew ms   6 ms after which an upload that marks is silent
--       7 `run_id` of this Redis, or ''   8.. chunks that give way to this one, as long as nobody has begun to send them
-- answer: for each question the chunk that answers it, 'later' (an upload has it that is no batch yet), or '' (it is ours);
--         or {} if another dispatch has the chunk
if redis.call('GET', KEYS[1]) ~= ARGV[3] then return {} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[5])
-- It marks right before it becomes a batch. One that is silent has died, or will find its right to its pages gone.
local function is_coming(hex)
  if not redis.call('ZSCORE', KEYS[2], hex) then return false end
  local marked = tonumber(redis.call('HGET', ARGV[4] .. 'u:' .. hex, 'marked') or nil)
  if marked and now - marked <= tonumber(ARGV[6]) then return true end
  redis.call('ZREM', KEYS[2], hex)
  return false
end
-- One in nobody's hands is as it says: planned, and never sent, if it is this start of Redis that says so. It is told, so
-- that whoever claims it looks what is left to it before anything is sent.
local gives_way = {}
for i = 8, #ARGV do gives_way[ARGV[i]] = ARGV[7] ~= '' end
local function is_left_by(holder)
  if not gives_way[holder] or redis.call('EXISTS', ARGV[4] .. 'k:' .. holder .. ':fence') == 1 then return false end
  local facts = redis.call('HMGET', ARGV[4] .. 'k:' .. holder, 'state', 'server')
  if facts[1] ~= 'planned' or facts[2] ~= ARGV[7] then return false end
  redis.call('HSET', ARGV[4] .. 'k:' .. holder, 'gave', 1)
  return true
end
local said = {}
local function holder_of(mark)
  local holder = redis.call('GET', mark)
  if not holder or holder == ARGV[1] or holder == ARGV[2] then return '' end
  if said[holder] then return said[holder] end
  local hex = string.match(holder, '^[^.]*')
  local state = hex ~= holder and redis.pcall('HGET', ARGV[4] .. 'k:' .. holder, 'state')
  local there = redis.call('EXISTS', ARGV[4] .. 'b:' .. hex) == 1
  local answer = ''
  if not there then
    if is_coming(hex) then answer = 'later' end
  elseif type(state) == 'string' and state ~= 'settled' and not is_left_by(holder) then
    answer = holder
  end
  said[holder] = answer
  return answer
end
local answers = {}
for i = 3, #KEYS do
  answers[i - 2] = holder_of(KEYS[i])
  if answers[i - 2] == '' then redis.call('SET', KEYS[i], ARGV[1]) end
end
return answers
