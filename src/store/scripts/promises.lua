#!lua flags=allow-oom
-- Holds what is promised in all against what each open batch is promised, at one moment; puts it right if told to.
-- KEYS  1 open batches   2 bytes promised to all batches
-- ARGV  1 key prefix   2 batches to look at at most   3 '', or by how much it was astray at two looks: then it is put right
--       if it still is by that much
-- answer: by how much more is promised in all; 0 too where it was put right; nil where there are too many batches to tell
local ids, due = redis.call('ZRANGE', KEYS[1], 0, tonumber(ARGV[2])), 0
if #ids > tonumber(ARGV[2]) then return false end
for _, id in ipairs(ids) do
  local promised = redis.pcall('HGET', ARGV[1] .. 'b:' .. id, 'reserved')
  due = due + (type(promised) == 'string' and tonumber(promised) or 0)
end
local promised = redis.pcall('GET', KEYS[2])
local astray = (type(promised) == 'string' and tonumber(promised) or 0) - due
if ARGV[3] == '' or astray ~= tonumber(ARGV[3]) then return string.format('%.0f', astray) end
if due > 0 then redis.call('SET', KEYS[2], string.format('%.0f', due)) else redis.call('DEL', KEYS[2]) end
return '0'
