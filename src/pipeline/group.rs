//! Answers on their way from a download into Redis: packed as their lines arrive, and written in groups, so that no more
//! than one group stands in memory.

use crate::{
    domain::{key::CacheKey, outcome::Answer},
    store::record::{self, Provenance, StoredAnswer},
};

/// A group is full at this many bytes or this many answers.
const BYTES: usize = 1 << 20;
const ANSWERS: usize = 500;

/// Answers of one provider batch that are not written yet.
pub(super) struct Group {
    from: Provenance,
    answers: Vec<(CacheKey, Vec<u8>)>,
    bytes: usize,
}

impl Group {
    /// `from`: where all of them come from, but for the id of the one request.
    pub(super) fn new(from: Provenance) -> Group {
        Group { from, answers: Vec::new(), bytes: 0 }
    }

    /// Packs an answer; its packed size.
    pub(super) fn push(&mut self, key: CacheKey, answer: Answer) -> usize {
        metrics::counter!("batchgate_harvested_bytes_total").increment(answer.body.len() as u64);
        let from = Provenance { request_id: answer.request_id, ..self.from.clone() };
        let packed = record::pack_cached(&key, &StoredAnswer { reading: answer.reading, from, body: answer.body });
        let size = packed.len();
        self.bytes += size;
        self.answers.push((key, packed));
        size
    }

    pub(super) fn is_full(&self) -> bool {
        self.answers.len() >= ANSWERS || self.bytes >= BYTES
    }

    /// What is in it; it is empty then.
    pub(super) fn take(&mut self) -> Vec<(CacheKey, Vec<u8>)> {
        self.bytes = 0;
        std::mem::take(&mut self.answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::outcome::Reading;
    use bytes::Bytes;

    fn answer(bytes: usize) -> Answer {
        // Noise (xorshift), so that it does not pack to nothing.
        let mut state = 1u64;
        let noise = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        };
        let body: Vec<u8> = (0..bytes).map(noise).collect();
        Answer { reading: Reading::default(), body: Bytes::from(body), request_id: Some("r".to_owned()) }
    }

    fn group() -> Group {
        let from = Provenance {
            provider: Some("a".to_owned()),
            provider_batch: "b".to_owned(),
            request_id: None,
            chunk: "c".to_owned(),
            at: 1,
            team: "t".to_owned(),
            key_version: "batchgate/1".to_owned(),
        };
        Group::new(from)
    }

    #[test]
    fn a_group_is_full_by_number_or_by_size() {
        let mut many = group();
        for n in 0..ANSWERS {
            assert!(!many.is_full(), "{n}");
            many.push(CacheKey::from_bytes([1; 32]), answer(1));
        }
        assert!(many.is_full());
        assert_eq!((many.take().len(), many.is_full(), many.take().len()), (ANSWERS, false, 0));
        let mut large = group();
        large.push(CacheKey::from_bytes([2; 32]), answer(2 * BYTES));
        assert!(large.is_full());
    }

    #[test]
    fn an_answer_keeps_the_id_of_its_own_request() {
        let (mut group, key) = (group(), CacheKey::from_bytes([3; 32]));
        group.push(key, answer(10));
        let packed = group.take().remove(0).1;
        let stored = record::unpack_cached(&key, &packed).expect("readable").expect("it answers its key");
        assert_eq!((stored.from.request_id.as_deref(), stored.from.provider_batch.as_str()), (Some("r"), "b"));
    }
}
