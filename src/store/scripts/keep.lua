#!lua flags=allow-oom
-- Writes a frame of a page that is being sealed. Not refused by a full Redis: what it takes the place of is larger.
-- KEYS  1 frame
-- ARGV  1 its bytes   2 ms it lives, unless the seal script makes it stay
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
