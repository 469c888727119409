//! Stored shapes, each with a version, and their way to and from the domain. A fixture of every version ever shipped
//! stays readable (`tests/fixtures/records`). Knows no key strings and talks to nobody.

use super::StoreError;
use crate::domain::{
    chunk::{Item, Lane, Place},
    key::CacheKey,
    outcome::{Failure, Reading},
};
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

const VERSION: u8 = 1;
/// Fast, and already two to four times smaller on answers that resemble each other.
const ZSTD_LEVEL: i32 = 3;
/// No frame of ours unpacks to more: a page of the spool holds at most 1 MiB and one prompt as large as a provider takes.
const MAX_UNPACKED: usize = 320 << 20;

/// Raw bytes after which a frame is full. One answer larger than that gets a frame of its own.
pub const FRAME_BYTES: usize = 4 << 20;

/// Records of a head and a body, compressed together: similar answers compress well side by side.
///
/// Layout: version, raw length (u32), zstd of { head length (u32), head, body length (u32), body } repeated.
#[derive(Default)]
pub struct Frame {
    raw: BytesMut,
}

impl Frame {
    pub fn push(&mut self, head: &[u8], body: &[u8]) {
        for part in [head, body] {
            self.raw.put_u32(u32::try_from(part.len()).expect("a record is far below 4 GiB"));
            self.raw.put_slice(part);
        }
    }

    /// Raw bytes so far.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    pub fn pack(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        compress(&self.raw, &mut out);
        out
    }

    /// The records of a packed frame; slices of one buffer.
    pub fn unpack(stored: &[u8]) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        records(decompress(strip_version(stored, "frame")?, "frame")?)
    }

    /// The records of a frame that was never packed.
    pub fn into_records(self) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        records(self.raw.freeze())
    }
}

fn records(mut raw: Bytes) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
    let mut records = Vec::new();
    while !raw.is_empty() {
        let head = take_part(&mut raw, "frame")?;
        let body = take_part(&mut raw, "frame")?;
        records.push((head, body));
    }
    Ok(records)
}

fn compress(raw: &[u8], out: &mut Vec<u8>) {
    out.put_u32(u32::try_from(raw.len()).expect("a frame is far below 4 GiB"));
    let packed = zstd::bulk::compress(raw, ZSTD_LEVEL).expect("zstd into memory does not fail");
    out.extend_from_slice(&packed);
}

fn decompress(stored: &[u8], what: &str) -> Result<Bytes, StoreError> {
    let (len, packed) =
        stored.split_at_checked(4).ok_or_else(|| StoreError::corrupt(what, "shorter than its header"))?;
    let len = u32::from_be_bytes(len.try_into().expect("split at four")) as usize;
    if len > MAX_UNPACKED {
        return Err(StoreError::corrupt(what, format!("claims to unpack to {len} bytes")));
    }
    let raw = zstd::bulk::decompress(packed, len).map_err(|why| StoreError::corrupt(what, why))?;
    if raw.len() != len {
        return Err(StoreError::corrupt(what, "unpacks to another length than it says"));
    }
    Ok(raw.into())
}

fn strip_version<'a>(stored: &'a [u8], what: &str) -> Result<&'a [u8], StoreError> {
    match stored.split_first() {
        Some((&VERSION, rest)) => Ok(rest),
        Some((version, _)) => Err(StoreError::corrupt(what, format!("unknown version {version}"))),
        None => Err(StoreError::corrupt(what, "empty")),
    }
}

fn take_part(raw: &mut Bytes, what: &str) -> Result<Bytes, StoreError> {
    let short = || StoreError::corrupt(what, "ends inside a record");
    let len = raw.get(..4).ok_or_else(short)?;
    let len = u32::from_be_bytes(len.try_into().expect("four bytes")) as usize;
    if raw.len() < 4 + len {
        return Err(short());
    }
    let part = raw.slice(4..4 + len);
    *raw = raw.slice(4 + len..);
    Ok(part)
}

/// JSON under zstd: for shapes that are read whole.
pub fn pack_json<T: Serialize>(value: &T) -> Vec<u8> {
    let mut out = vec![VERSION];
    compress(&serde_json::to_vec(value).expect("our own shapes serialize"), &mut out);
    out
}

pub fn unpack_json<T: DeserializeOwned>(stored: &[u8], what: &str) -> Result<T, StoreError> {
    let raw = decompress(strip_version(stored, what)?, what)?;
    serde_json::from_slice(&raw).map_err(|why| StoreError::corrupt(what, why))
}

/// Where an answer came from; kept with it for as long as it lives. A member that an older answer lacks is the default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The account that was asked; none in answers from before this was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The provider's id of the batch that answered.
    pub provider_batch: String,
    /// The provider's id of the one request, where it gives one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    pub chunk: String,
    /// Unix milliseconds of the harvest.
    pub at: u64,
    /// The team that paid.
    pub team: String,
    /// The form of the key it was stored under.
    #[serde(default = "first_key_version", skip_serializing_if = "is_first_key_version")]
    pub key_version: String,
}

/// The only one there was before it was noted.
fn first_key_version() -> String {
    "batchgate/1".to_owned()
}

fn is_first_key_version(version: &str) -> bool {
    version == "batchgate/1"
}

#[derive(Serialize, Deserialize)]
struct AnswerHead {
    reading: Reading,
    from: Provenance,
}

/// An answer with what we read in it and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    pub reading: Reading,
    pub from: Provenance,
    pub body: Bytes,
}

impl StoredAnswer {
    /// Head length (u32), head, body: the form inside cache entries and fragments.
    pub fn to_raw(&self) -> Bytes {
        let head = AnswerHead { reading: self.reading.clone(), from: self.from.clone() };
        let head = serde_json::to_vec(&head).expect("our own shapes serialize");
        let mut raw = BytesMut::with_capacity(4 + head.len() + self.body.len());
        raw.put_u32(u32::try_from(head.len()).expect("a head is small"));
        raw.put_slice(&head);
        raw.put_slice(&self.body);
        raw.freeze()
    }

    pub fn from_raw(mut raw: Bytes) -> Result<StoredAnswer, StoreError> {
        let head = take_part(&mut raw, "answer")?;
        let head: AnswerHead = serde_json::from_slice(&head).map_err(|why| StoreError::corrupt("answer", why))?;
        Ok(StoredAnswer { reading: head.reading, from: head.from, body: raw })
    }
}

/// A cache entry: version, the key it answers, the packed answer.
pub fn pack_cached(key: &CacheKey, answer: &StoredAnswer) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(key.as_bytes());
    compress(&answer.to_raw(), &mut out);
    out
}

/// The answer of a cache entry; `None` if the entry says it answers another question than `key`.
pub fn unpack_cached(key: &CacheKey, stored: &[u8]) -> Result<Option<StoredAnswer>, StoreError> {
    let rest = strip_version(stored, "cache entry")?;
    let (own, packed) =
        rest.split_at_checked(32).ok_or_else(|| StoreError::corrupt("cache entry", "shorter than a key"))?;
    if own != key.as_bytes() {
        return Ok(None);
    }
    StoredAnswer::from_raw(decompress(packed, "cache entry")?).map(Some)
}

/// What a page knows of one key.
#[expect(clippy::large_enum_variant, reason = "nearly all are answers; a box for each costs more than the failures do")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    Answered(StoredAnswer),
    Failed(Failure),
}

/// Enters an outcome into a fragment's frame: key and kind in the head.
pub fn push_known(frame: &mut Frame, key: &CacheKey, known: &Known) {
    let mut head = [0; 33];
    head[..32].copy_from_slice(key.as_bytes());
    match known {
        Known::Answered(answer) => frame.push(&head, &answer.to_raw()),
        Known::Failed(failure) => {
            head[32] = 1;
            frame.push(&head, &serde_json::to_vec(failure).expect("our own shapes serialize"));
        }
    }
}

pub fn read_known(head: &[u8], body: Bytes) -> Result<(CacheKey, Known), StoreError> {
    let (key, kind) =
        head.split_first_chunk::<32>().ok_or_else(|| StoreError::corrupt("fragment", "shorter than a key"))?;
    let known = match kind {
        [0] => Known::Answered(StoredAnswer::from_raw(body)?),
        [1] => Known::Failed(serde_json::from_slice(&body).map_err(|why| StoreError::corrupt("fragment", why))?),
        _ => return Err(StoreError::corrupt("fragment", "unknown kind of outcome")),
    };
    Ok((CacheKey::from_bytes(*key), known))
}

/// One result's place on a page: whose it is and which question it asks. The client's order lives here alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The prompt's position in the request.
    #[serde(rename = "i")]
    pub index: u32,
    /// Counts 0 .. samples-1 within the prompt.
    #[serde(rename = "s")]
    pub sample: u32,
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub custom_id: Option<String>,
    #[serde(rename = "k")]
    pub key: CacheKey,
    /// Set where a provider must be asked: which of the page's lanes, and the prompt's bytes on the wire.
    #[serde(rename = "a", default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<Ask>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    #[serde(rename = "l")]
    pub lane: u32,
    #[serde(rename = "w")]
    pub wire_bytes: u64,
    /// What it counts against a provider's limit on inputs.
    #[serde(rename = "n", default = "one", skip_serializing_if = "is_one")]
    pub inputs: u64,
}

fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_one(inputs: &u64) -> bool {
    *inputs == 1
}

/// A result that ended without an answer, kept for a retry. A record's head; its body is the prompt's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    #[serde(rename = "i")]
    pub index: u32,
    #[serde(rename = "s")]
    pub sample: u32,
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub custom_id: Option<String>,
    #[serde(rename = "k")]
    pub key: CacheKey,
    #[serde(rename = "a")]
    pub again: Again,
}

/// Whether a result may be asked again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Again {
    /// As a prompt of this lane.
    #[serde(rename = "l")]
    Ask(Lane),
    /// It was found at accept that nobody can be asked; there is no body.
    #[serde(rename = "f")]
    Refused(Failure),
}

impl Unanswered {
    pub fn head(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("our own shapes serialize")
    }

    pub fn from_head(head: &[u8]) -> Result<Unanswered, StoreError> {
        serde_json::from_slice(head).map_err(|why| StoreError::corrupt("unanswered result", why))
    }
}

/// An open page: its results in the client's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestPage {
    pub lanes: Vec<Lane>,
    pub entries: Vec<Entry>,
}

/// The questions of a chunk: version, then { key, attempts, missed, number of places (u32), { page, results } ... }.
pub fn pack_items(items: &[Item]) -> Vec<u8> {
    let mut out = vec![VERSION];
    for item in items {
        out.extend_from_slice(item.key.as_bytes());
        out.put_u8(item.attempts);
        out.put_u8(u8::from(item.missed));
        out.put_u32(u32::try_from(item.places.len()).expect("a batch has far fewer pages"));
        for place in &item.places {
            out.put_u32(place.page);
            out.put_u32(place.results);
        }
    }
    out
}

pub fn unpack_items(stored: &[u8]) -> Result<Vec<Item>, StoreError> {
    let mut rest = strip_version(stored, "chunk items")?;
    let mut items = Vec::with_capacity(rest.len() / 46);
    while !rest.is_empty() {
        items.push(take_item(&mut rest).ok_or_else(|| StoreError::corrupt("chunk items", "ends inside an item"))?);
    }
    Ok(items)
}

fn take_item(rest: &mut &[u8]) -> Option<Item> {
    let (key, after) = rest.split_first_chunk::<32>()?;
    let (&[attempts, missed], after) = after.split_first_chunk::<2>()?;
    let (count, mut after) = after.split_first_chunk::<4>()?;
    let mut places = Vec::new();
    for _ in 0..u32::from_be_bytes(*count) {
        let (page, next) = after.split_first_chunk::<4>()?;
        let (results, next) = next.split_first_chunk::<4>()?;
        places.push(Place { page: u32::from_be_bytes(*page), results: u32::from_be_bytes(*results) });
        after = next;
    }
    *rest = after;
    Some(Item { key: CacheKey::from_bytes(*key), places, attempts, missed: missed == 1 })
}

impl Serialize for CacheKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CacheKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<CacheKey, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        CacheKey::parse(&text).ok_or_else(|| serde::de::Error::custom("not a cache key"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::outcome::FailureCode;

    fn key(n: u8) -> CacheKey {
        CacheKey::from_bytes([n; 32])
    }

    fn answer() -> StoredAnswer {
        let from = Provenance {
            provider: None,
            provider_batch: "batch_1".into(),
            request_id: None,
            chunk: "0.0".into(),
            at: 1,
            team: "default".into(),
            key_version: first_key_version(),
        };
        StoredAnswer { reading: Reading::default(), from, body: Bytes::from_static(b"{\"text\": \"some answer\"}") }
    }

    #[test]
    fn provenance_comes_back() {
        let from =
            Provenance { provider: Some("anthropic".into()), key_version: "batchgate/2".into(), ..answer().from };
        let full = StoredAnswer { from, ..answer() };
        assert_eq!(unpack_cached(&key(1), &pack_cached(&key(1), &full)).expect("readable"), Some(full));
    }

    #[test]
    fn a_frame_comes_back() {
        let mut frame = Frame::default();
        frame.push(b"one", b"");
        frame.push(b"", &[7; 10_000]);
        let records = Frame::unpack(&frame.pack()).expect("readable");
        assert_eq!(records, [(Bytes::from("one"), Bytes::new()), (Bytes::new(), Bytes::from(vec![7; 10_000]))]);
    }

    #[test]
    fn an_entry_under_another_key_is_not_a_hit() {
        let entry = pack_cached(&key(1), &answer());
        assert_eq!(unpack_cached(&key(1), &entry).expect("readable"), Some(answer()));
        assert_eq!(unpack_cached(&key(2), &entry).expect("readable"), None);
    }

    #[test]
    fn items_and_outcomes_come_back() {
        let places = vec![Place { page: 3, results: 2 }, Place { page: 9, results: 1 }];
        let items = vec![Item { key: key(1), places, attempts: 2, missed: true }];
        assert_eq!(unpack_items(&pack_items(&items)).expect("readable"), items);
        let known = Known::Failed(Failure::ours(FailureCode::Missing, "gone"));
        let mut frame = Frame::default();
        push_known(&mut frame, &key(4), &known);
        let (head, body) = Frame::unpack(&frame.pack()).expect("readable").remove(0);
        assert_eq!(read_known(&head, body).expect("readable"), (key(4), known));
    }

    #[test]
    fn inputs_are_written_only_where_they_are_not_one() {
        for (inputs, text) in [(1, r#"{"l":0,"w":9}"#), (50_000, r#"{"l":0,"w":9,"n":50000}"#)] {
            let ask = Ask { lane: 0, wire_bytes: 9, inputs };
            assert_eq!(serde_json::to_string(&ask).unwrap(), text);
            assert_eq!(serde_json::from_str::<Ask>(text).unwrap(), ask);
        }
    }

    /// One of each stored shape, as version 1 wrote them.
    fn shapes() -> [(&'static str, Vec<u8>); 5] {
        let entry = Entry {
            index: 3,
            sample: 1,
            custom_id: Some("mine".into()),
            key: key(1),
            ask: Some(Ask { lane: 0, wire_bytes: 99, inputs: 1 }),
        };
        let lane = Lane {
            account: "anthropic".into(),
            endpoint: crate::domain::prompt::Endpoint::Messages,
            model: None,
            headers: crate::domain::prompt::ApiHeaders { version: Some("2023-06-01".into()), betas: vec!["b".into()] },
        };
        let item = Item { key: key(2), places: vec![Place { page: 7, results: 2 }], attempts: 1, missed: true };
        let mut frame = Frame::default();
        push_known(&mut frame, &key(1), &Known::Answered(answer()));
        push_known(&mut frame, &key(2), &Known::Failed(Failure::ours(FailureCode::Missing, "gone")));
        let mut unanswered = Frame::default();
        for again in [Again::Ask(lane.clone()), Again::Refused(Failure::ours(FailureCode::TooLarge, "huge"))] {
            let one = Unanswered { index: 3, sample: 1, custom_id: Some("mine".into()), key: key(1), again };
            unanswered.push(&one.head(), b"{\"model\":\"m\"}");
        }
        [
            ("cached", pack_cached(&key(1), &answer())),
            ("fragment", frame.pack()),
            ("manifest", pack_json(&ManifestPage { lanes: vec![lane], entries: vec![entry] })),
            ("items", pack_items(&[item])),
            ("unanswered", unanswered.pack()),
        ]
    }

    #[test]
    fn what_version_1_wrote_is_read_as_it_was_meant() {
        let stored: std::collections::BTreeMap<String, String> =
            serde_json::from_str(include_str!("../../tests/fixtures/records/v1.json")).unwrap();
        let engine = base64::engine::general_purpose::STANDARD;
        let read = |name: &str| base64::Engine::decode(&engine, &stored[name]).unwrap();
        let fresh: std::collections::BTreeMap<_, _> = shapes().into_iter().collect();
        assert_eq!(unpack_cached(&key(1), &read("cached")).unwrap(), Some(answer()));
        assert_eq!(Frame::unpack(&read("fragment")).unwrap(), Frame::unpack(&fresh["fragment"]).unwrap());
        let manifest = |stored: &[u8]| unpack_json::<ManifestPage>(stored, "manifest").unwrap();
        assert_eq!(manifest(&read("manifest")), manifest(&fresh["manifest"]));
        assert_eq!(unpack_items(&read("items")).unwrap(), unpack_items(&fresh["items"]).unwrap());
        let unanswered = |stored: &[u8]| -> Vec<_> {
            let records = Frame::unpack(stored).unwrap().into_iter();
            records.map(|(head, body)| (Unanswered::from_head(&head).unwrap(), body)).collect()
        };
        assert_eq!(unanswered(&read("unanswered")), unanswered(&fresh["unanswered"]));
    }

    #[test]
    fn garbage_is_corrupt_and_never_a_panic() {
        let good = pack_cached(&key(1), &answer());
        for cut in 0..good.len() {
            assert!(unpack_cached(&key(1), &good[..cut]).is_err());
        }
        for stored in [&b""[..], b"\x02", b"\x01\xff\xff\xff\xff", b"\x01\x00\x00\x00\x09abc"] {
            assert!(Frame::unpack(stored).is_err());
            assert!(unpack_items(stored).is_err() || stored == b"\x01");
        }
    }
}
