//! Reads all sources of an ended batch, one after another, as one stream of lines. Knows no provider's line: that is
//! [`Source::decode`]. Keeps nothing: repeats, strays and gaps are the ledger's business.

use super::{CallError, Line, download::Download, lines::Piece};
use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use std::{collections::VecDeque, sync::Arc};

/// Where a provider's results come from, and how to read them.
#[async_trait]
pub(super) trait Source: Send + Sync {
    /// For metrics and logs.
    fn provider(&self) -> &'static str;

    async fn open(&self, source: &str) -> Result<Download, CallError>;

    /// The line's id and outcome; none where it has no readable id.
    fn decode(&self, line: &str) -> Option<Line>;

    /// Asked only of a body that cannot prove its end: is what was read all there is?
    async fn complete(&self, source: &str, read: Read) -> Result<bool, CallError>;
}

/// How much of a source was read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Read {
    pub lines: u64,
    pub bytes: u64,
}

/// The lines of all `sources`. Ends without an error only if every one of them was read to its end.
pub(super) fn stream(from: Arc<dyn Source>, sources: Vec<String>) -> BoxStream<'static, Result<Line, CallError>> {
    let harvest = Harvest { from, waiting: sources.into(), open: None };
    stream::try_unfold(harvest, |mut harvest| async move { Ok(harvest.next().await?.map(|line| (line, harvest))) })
        .boxed()
}

struct Harvest {
    from: Arc<dyn Source>,
    waiting: VecDeque<String>,
    open: Option<Open>,
}

struct Open {
    source: String,
    download: Download,
    lines: u64,
}

impl Harvest {
    async fn next(&mut self) -> Result<Option<Line>, CallError> {
        loop {
            let Some(open) = &mut self.open else {
                let Some(source) = self.waiting.pop_front() else { return Ok(None) };
                let download = self.from.open(&source).await?;
                self.open = Some(Open { source, download, lines: 0 });
                continue;
            };
            match open.download.next().await? {
                Some(piece) => {
                    open.lines += 1;
                    match self.read(&piece) {
                        Some(line) => return Ok(Some(line)),
                        None => self.count_broken(),
                    }
                }
                None => self.close().await?,
            }
        }
    }

    fn read(&self, piece: &Piece) -> Option<Line> {
        match piece {
            // Bytes that are no UTF-8 cost themselves, not the answer around them.
            Piece::Line(line) => self.from.decode(&String::from_utf8_lossy(line)),
            Piece::TooLong => None,
        }
    }

    fn count_broken(&self) {
        let provider = self.from.provider();
        metrics::counter!("batchgate_broken_lines_total", "provider" => provider).increment(1);
        tracing::warn!(
            provider,
            source = self.open.as_ref().map(|open| open.source.as_str()),
            "result line without a readable custom_id"
        );
    }

    async fn close(&mut self) -> Result<(), CallError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let read = Read { lines: open.lines, bytes: open.download.bytes() };
        if open.download.proven() || self.from.complete(&open.source, read).await? {
            return Ok(());
        }
        let Read { lines, bytes } = read;
        let detail = format!(
            "read results {}: connection closed after {lines} lines, {bytes} bytes, which is not all",
            open.source
        );
        Err(CallError::Again { after: None, detail })
    }
}
