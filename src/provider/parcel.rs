//! A parcel's bytes on their way out: a request body of known length, made line by line while it is sent, so that its
//! size costs no memory. Knows no HTTP; what a line looks like is each provider's [`Frame`].

use super::{OutLine, Parcel, ReadError};
use crate::domain::limits::BatchLimits;
use bytes::{Bytes, BytesMut};
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// Characters of every custom_id we send; with them a line's weight does not depend on the prompt's key.
pub(super) const CUSTOM_ID_CHARS: usize = 60;
/// Lines are gathered into pieces of about this size before they go to the socket.
const PIECE: usize = 64 * 1024;

/// How a provider wants prompts laid out.
pub(super) struct Frame {
    pub head: &'static [u8],
    /// Between two prompts, not after the last.
    pub between: &'static [u8],
    pub tail: &'static [u8],
    /// Appends one prompt.
    pub line: fn(&Parcel, &OutLine, &mut BytesMut),
}

/// The limits of a batch whose lines cost `line` bytes beyond the body.
pub(super) struct Bounds {
    pub prompts: usize,
    pub bytes: u64,
    pub mixes_models: bool,
}

impl Frame {
    /// Counts and weights, taken from the very layout that is sent. `line` is what a line costs without its body.
    pub(super) fn limits(&self, line: usize, bounds: &Bounds) -> BatchLimits {
        BatchLimits {
            max_prompts: bounds.prompts,
            max_inputs: None,
            max_bytes: bounds.bytes,
            // Every prompt is charged with a separator, and there is one less than prompts.
            fixed_bytes: (self.head.len() + self.tail.len()) as u64 - self.between.len() as u64,
            line_bytes: (line + self.between.len()) as u64,
            mixes_models: bounds.mixes_models,
        }
    }
}

/// How far a body is on its way; shared with whoever waits for the answer.
#[derive(Clone, Default)]
pub(super) struct Progress(Arc<Shared>);

#[derive(Default)]
struct Shared {
    taken: AtomicU64,
    complete: AtomicBool,
    failed: Mutex<Option<String>>,
}

impl Progress {
    /// Of a body that is handed over whole: once a connection stands, all of it may have arrived.
    pub(super) fn whole() -> Progress {
        let progress = Progress::default();
        progress.0.complete.store(true, Ordering::Release);
        progress
    }

    /// Bytes the connection has taken.
    pub(super) fn taken(&self) -> u64 {
        self.0.taken.load(Ordering::Acquire)
    }

    /// Whether the last byte was given to the connection. Before that the provider cannot have acted on the body.
    pub(super) fn complete(&self) -> bool {
        self.0.complete.load(Ordering::Acquire)
    }

    /// Why our own side could not go on.
    pub(super) fn failure(&self) -> Option<String> {
        self.0.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fail(&self, why: String) -> ReadError {
        *self.0.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
        ReadError(why)
    }
}

/// What becomes of a body once the provider has all of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    /// Nothing yet.
    Upload,
    /// A batch that is paid for.
    Create,
}

/// Why the last bytes of a create stayed here.
const TOO_LATE: &str = "the claim may have run out, and the chunk be another's: nothing was created";

/// A small body that creates.
pub(super) fn small(parcel: &Parcel, body: Vec<u8>) -> (BoxStream<'static, Result<Bytes, ReadError>>, Progress) {
    let (progress, may_create) = (Progress::default(), Arc::clone(&parcel.may_create));
    let shared = progress.clone();
    let piece = async move {
        if !may_create() {
            return Err(shared.fail(TOO_LATE.to_owned()));
        }
        shared.0.taken.store(body.len() as u64, Ordering::Release);
        shared.0.complete.store(true, Ordering::Release);
        Ok(Bytes::from(body))
    };
    (stream::once(piece).boxed(), progress)
}

/// The parcel as a stream of exactly `wire_bytes` bytes and `prompts` prompts; anything else is an error before the last piece
/// leaves, so that a wrong body is never a whole one.
pub(super) fn stream(
    parcel: &Parcel,
    frame: Frame,
    means: Means,
) -> (BoxStream<'static, Result<Bytes, ReadError>>, Progress) {
    let progress = Progress::default();
    let writer = Writer {
        lines: (parcel.open)(),
        parcel: parcel.clone(),
        frame,
        progress: progress.clone(),
        means,
        prompts: 0,
        ended: false,
    };
    let pieces =
        stream::try_unfold(writer, |mut writer| async move { Ok(writer.piece().await?.map(|piece| (piece, writer))) });
    (pieces.boxed(), progress)
}

struct Writer {
    lines: BoxStream<'static, Result<OutLine, ReadError>>,
    parcel: Parcel,
    frame: Frame,
    progress: Progress,
    means: Means,
    prompts: usize,
    ended: bool,
}

impl Writer {
    async fn piece(&mut self) -> Result<Option<Bytes>, ReadError> {
        if self.ended {
            return Ok(None);
        }
        let mut piece = BytesMut::with_capacity(PIECE + PIECE / 4);
        if self.progress.taken() == 0 {
            piece.extend_from_slice(self.frame.head);
        }
        while piece.len() < PIECE && !self.ended {
            match self.lines.next().await {
                Some(Ok(line)) => self.append(&line, &mut piece)?,
                Some(Err(error)) => return Err(self.progress.fail(error.0)),
                None => {
                    piece.extend_from_slice(self.frame.tail);
                    self.ended = true;
                }
            }
        }
        self.account_for(&piece)?;
        Ok((!piece.is_empty()).then(|| piece.freeze()))
    }

    fn append(&mut self, line: &OutLine, piece: &mut BytesMut) -> Result<(), ReadError> {
        if line.body.contains(&b'\n') {
            return Err(self.progress.fail(format!("body of {} holds a line end", line.custom_id)));
        }
        if self.prompts > 0 {
            piece.extend_from_slice(self.frame.between);
        }
        (self.frame.line)(&self.parcel, line, piece);
        self.prompts += 1;
        Ok(())
    }

    fn account_for(&self, piece: &BytesMut) -> Result<(), ReadError> {
        let taken = self.progress.taken() + piece.len() as u64;
        let planned = self.parcel.wire_bytes;
        let right = if self.ended { taken == planned && self.prompts == self.parcel.prompts } else { taken <= planned };
        if !right {
            let (chunk, prompts, expected) = (&self.parcel.chunk, self.prompts, self.parcel.prompts);
            let why =
                format!("chunk {chunk} has {prompts} prompts in {taken} bytes, planned were {expected} in {planned}");
            return Err(self.progress.fail(why));
        }
        if self.ended && self.means == Means::Create && !(self.parcel.may_create)() {
            return Err(self.progress.fail(TOO_LATE.to_owned()));
        }
        self.progress.0.taken.store(taken, Ordering::Release);
        self.progress.0.complete.store(taken == planned, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::domain::prompt::{ApiHeaders, Endpoint};
    use futures_util::TryStreamExt;

    pub(in crate::provider) fn parcel(bodies: &[&'static str], wire_bytes: u64) -> Parcel {
        let lines: Vec<OutLine> = bodies
            .iter()
            .enumerate()
            .map(|(number, body)| OutLine {
                custom_id: format!("{number:0>60}"),
                body: Bytes::from_static(body.as_bytes()),
            })
            .collect();
        Parcel {
            chunk: "chk_1".to_owned(),
            deployment: "test".to_owned(),
            attempt: 1,
            endpoint: Endpoint::ChatCompletions,
            model: "m".to_owned(),
            headers: ApiHeaders::default(),
            prompts: bodies.len(),
            wire_bytes,
            open: Arc::new(move || stream::iter(lines.clone().into_iter().map(Ok)).boxed()),
            may_create: Arc::new(|| true),
        }
    }

    /// All of a parcel's body, as it would be sent.
    pub(in crate::provider) async fn written(parcel: &Parcel, frame: Frame) -> Result<String, ReadError> {
        let (pieces, progress) = stream(parcel, frame, Means::Create);
        let bytes = pieces.try_collect::<Vec<_>>().await?.concat();
        assert!(progress.complete());
        Ok(String::from_utf8(bytes).expect("JSON is UTF-8"))
    }

    fn bare() -> Frame {
        Frame { head: b"[", between: b",", tail: b"]", line: |_, line, out| out.extend_from_slice(&line.body) }
    }

    #[tokio::test]
    async fn the_body_is_as_long_as_planned() {
        let limits = bare().limits(0, &Bounds { prompts: 10, bytes: 100, mixes_models: true });
        let bytes = limits.fixed_bytes + limits.weight(1) + limits.weight(2) + limits.weight(3);
        assert_eq!(written(&parcel(&["1", "22", "333"], bytes), bare()).await.unwrap(), "[1,22,333]");
        let one = limits.fixed_bytes + limits.weight(1);
        assert_eq!(written(&parcel(&["1"], one), bare()).await.unwrap(), "[1]");
    }

    #[tokio::test]
    async fn another_length_is_an_error_before_the_last_piece_leaves() {
        for wrong in [4, 6, 100] {
            let (pieces, progress) = stream(&parcel(&["1", "2"], wrong), bare(), Means::Create);
            let sent: Result<Vec<Bytes>, ReadError> = pieces.try_collect().await;
            assert!(sent.is_err() && !progress.complete(), "{wrong}");
            assert!(
                progress.failure().unwrap().starts_with("chunk chk_1 has 2 prompts in 5 bytes"),
                "{:?}",
                progress.failure()
            );
        }
        assert!(written(&parcel(&["1\n"], 4), bare()).await.is_err(), "a line end inside a line");
    }

    #[tokio::test]
    async fn who_may_not_create_any_more_sends_no_whole_body() {
        let late = Parcel { may_create: Arc::new(|| false), ..parcel(&["1", "2"], 5) };
        let bodies = [stream(&late, bare(), Means::Create), small(&late, b"{}".to_vec())];
        for (pieces, progress) in bodies {
            assert!(pieces.try_collect::<Vec<_>>().await.is_err() && !progress.complete());
            assert_eq!(progress.failure().as_deref(), Some(TOO_LATE));
        }
        let (pieces, progress) = stream(&late, bare(), Means::Upload);
        assert!(pieces.try_collect::<Vec<_>>().await.is_ok() && progress.complete(), "an upload buys nothing");
    }
}
