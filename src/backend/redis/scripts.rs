//! The scripts: what takes several commands and must be seen whole or not at all.
//!
//! They are short, so they travel with each call (EVAL): nothing to load first, nothing to lose at a restart.

/// KEYS: key. ARGV: expected, value, ttl in ms.
pub(super) const SWAP: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1";

/// KEYS: key. ARGV: LPUSH or RPUSH, value, ttl in ms.
pub(super) const PUSH: &str = "redis.call(ARGV[1], KEYS[1], ARGV[2]) redis.call('PEXPIRE', KEYS[1], ARGV[3])";

/// KEYS: key. ARGV: ttl in ms or '', values. One by one: Lua's stack does not hold a long list at once.
pub(super) const REPLACE_LIST: &str = "redis.call('DEL', KEYS[1]) \
    for i = 2, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[i]) end \
    if ARGV[1] ~= '' and #ARGV > 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end";

/// KEYS: hash. ARGV: field, value, ttl in ms. For servers with HPEXPIRE and without HSETEX.
pub(super) const SET_FIELD: &str = "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) \
    redis.call('HPEXPIRE', KEYS[1], ARGV[3], 'FIELDS', 1, ARGV[1])";

// The emulation of field TTLs. KEYS: hash, sorted set of its fields' ends.

/// The server's time in milliseconds.
macro_rules! now {
    () => {
        "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) "
    };
}

/// ARGV: field, value, ttl in ms or ''. Removes some fields that are over; when all have an end, both keys get the
/// last one (the set a little later, so that no field outlives its end). A set that was left by a hash that somebody
/// deleted is not believed.
pub(super) const EMULATED_SET: &str = concat!(
    now!(),
    "if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('DEL', KEYS[2]) end \
     for _, f in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 100)) do \
       redis.call('HDEL', KEYS[1], f) redis.call('ZREM', KEYS[2], f) end \
     redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) \
     if ARGV[3] == '' then redis.call('ZREM', KEYS[2], ARGV[1]) \
     else redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1]) end \
     if redis.call('HLEN', KEYS[1]) == redis.call('ZCARD', KEYS[2]) then \
       local last = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] \
       redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', last)) \
       redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', last + 60000)) \
     else redis.call('PERSIST', KEYS[1]) redis.call('PERSIST', KEYS[2]) end"
);

/// ARGV: field. The value, or nil.
pub(super) const EMULATED_GET: &str = concat!(
    now!(),
    "local e = redis.call('ZSCORE', KEYS[2], ARGV[1]) \
     local v = redis.call('HGET', KEYS[1], ARGV[1]) \
     if e and tonumber(e) <= now then return false end return v"
);

/// The whole hash, and the fields of it that are over.
pub(super) const EMULATED_GET_ALL: &str = concat!(
    now!(),
    "return {redis.call('HGETALL', KEYS[1]), redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)}"
);

/// ARGV: field. As HPTTL: -2, -1, or what is left in ms.
pub(super) const EMULATED_TTL: &str = concat!(
    now!(),
    "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return {-2} end \
     local e = redis.call('ZSCORE', KEYS[2], ARGV[1]) \
     if not e then return {-1} end \
     if tonumber(e) <= now then return {-2} end return {tonumber(e) - now}"
);

/// ARGV: field. 1 when it was there and not over.
pub(super) const EMULATED_DELETE: &str = concat!(
    now!(),
    "local e = redis.call('ZSCORE', KEYS[2], ARGV[1]) \
     local n = redis.call('HDEL', KEYS[1], ARGV[1]) \
     redis.call('ZREM', KEYS[2], ARGV[1]) \
     if e and tonumber(e) <= now then return 0 end return n"
);

/// 1 when the key was there.
pub(super) const EMULATED_DELETE_KEY: &str =
    "redis.call('UNLINK', KEYS[2]) return redis.call('UNLINK', KEYS[1])";
