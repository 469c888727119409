#!lua
-- Finds out who answers each question of a chunk that waits, and gives it those that nobody will.
-- KEYS  1 fence   2 uploads   3.. the marks
-- ARGV  1 chunk id   2 its batch's hex   3 token   4 key prefix
-- answer: for each question the chunk that answers it, 'later' (an upload has it that is no batch yet), or '' (it is ours);
--         or {} if another dispatch has the chunk
if redis.call('GET', KEYS[1]) ~= ARGV[3] then return {} end
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
    if redis.call('ZSCORE', KEYS[2], hex) then answer = 'later' end
  elseif type(state) == 'string' and state ~= 'settled' then
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
