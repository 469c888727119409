//! How full Redis is and what of it is promised. Pure: the store reads the figures, the pipeline acts on them.

/// A tenth of `maxmemory` is kept for what is written and removed on the way: open pages, staged answers, buffers.
const KEPT: u64 = 10;

/// Redis's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub used: u64,
    /// 0: no bound.
    pub max: u64,
    /// Promised to batches of the namespace that wait for answers, and not used yet.
    pub reserved: u64,
    /// The same of the other namespaces.
    pub elsewhere: u64,
}

/// What a batch would have needed, and what there was, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Full {
    pub needed: u64,
    /// Neither used, nor promised to other batches, nor kept for work in hand.
    pub free: u64,
    pub max: u64,
}

impl Room {
    /// What may be used and promised together; none without a bound.
    fn bound(&self) -> Option<u64> {
        (self.max > 0).then(|| self.max - self.max / KEPT)
    }

    /// What may be promised in all in the namespace while no more is used than now; none without a bound.
    pub fn allowance(&self) -> Option<u64> {
        self.bound().map(|bound| bound.saturating_sub(self.used.saturating_add(self.elsewhere)))
    }

    /// How much is lacking if so much more is to be promised; 0: it fits.
    pub fn shortage(&self, needed: u64) -> u64 {
        self.bound().map_or(0, |bound| (self.used + self.reserved + self.elsewhere + needed).saturating_sub(bound))
    }

    pub fn full(&self, needed: u64) -> Full {
        let free = self.allowance().map_or(u64::MAX, |allowance| allowance.saturating_sub(self.reserved));
        Full { needed, free, max: self.max }
    }
}

/// What the cache may take of Redis (`BATCHGATE_CACHE_MAX`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMax {
    Bytes(u64),
    /// Of `maxmemory`; no bound where that has none.
    Percent(u8),
}

impl CacheMax {
    /// In bytes, with this `maxmemory`; none: no bound.
    pub fn bytes(self, max: u64) -> Option<u64> {
        match self {
            CacheMax::Bytes(bytes) => Some(bytes),
            CacheMax::Percent(_) if max == 0 => None,
            CacheMax::Percent(percent) => Some(max / 100 * u64::from(percent)),
        }
    }

    /// What promises to new batches leave of the cache, in bytes: half of what it may take. A promise costs whoever asks for
    /// it next to nothing, and its size says little of what it will cost, so nothing but such a floor bounds what is lost
    /// to promises. What has been paid for may take all of the cache.
    pub fn floor(self, max: u64) -> u64 {
        self.bytes(max).map_or(0, |bytes| bytes.min(max) / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_and_what_is_lacking() {
        let room = Room { used: 500, max: 1_000, reserved: 300, elsewhere: 0 };
        assert_eq!((room.shortage(100), room.shortage(101)), (0, 1));
        assert_eq!(room.allowance(), Some(400));
        assert_eq!(room.full(200), Full { needed: 200, free: 100, max: 1_000 });
        let shared = Room { reserved: 100, elsewhere: 200, ..room };
        assert_eq!((shared.shortage(100), shared.shortage(101), shared.allowance()), (0, 1, Some(200)));
        assert_eq!(shared.full(200), room.full(200), "whoever else it is promised to");
        let full = Room { used: 2_000, ..room };
        assert_eq!((full.allowance(), full.shortage(0), full.full(1).free), (Some(0), 1_400, 0));
        let boundless = Room { max: 0, ..full };
        assert_eq!((boundless.allowance(), boundless.shortage(u64::MAX / 2)), (None, 0));
    }

    #[test]
    fn the_cache_s_share() {
        assert_eq!(CacheMax::Percent(60).bytes(1_000), Some(600));
        assert_eq!(CacheMax::Percent(60).bytes(0), None);
        assert_eq!(CacheMax::Bytes(7).bytes(0), Some(7));
    }

    #[test]
    fn promises_leave_half_of_the_cache() {
        assert_eq!(CacheMax::Percent(60).floor(1_000), 300);
        assert_eq!(CacheMax::Bytes(200).floor(1_000), 100);
        assert_eq!(CacheMax::Bytes(9_000).floor(1_000), 500, "it may take all there is");
        assert_eq!(CacheMax::Percent(60).floor(0), 0, "without a bound nothing gives way");
    }
}
