//! Cuts a POST body into the batch's own fields and its prompts while it arrives, in slices of any size.
//!
//! Pure and incremental: holds one unfinished frame, never the array of prompts. Every byte is checked here, so what comes
//! out is JSON and UTF-8 of bounded depth. What the values mean is not known here: unpaired surrogates, unknown fields and
//! wrong types are found by `Options::parse` and `Prompt::parse`.

mod cut;
mod json_body;
mod ndjson_body;
mod scan;

use crate::domain::prompt::PromptText;
use crate::domain::{
    batch::{FieldText, Options},
    problem::Problem,
};

/// A piece of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A member of a JSON body other than `prompts`, or of an NDJSON header's `batch`. Repeated names come repeatedly;
    /// the last one counts.
    Field(FieldText),
    Prompt(PromptText),
}

/// The body cannot be taken. The variants are the answer's status; the problem says where and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// 400 `malformed_body`: it cannot be read.
    #[error("{}", .0.message)]
    Malformed(Problem),
    /// 413 `body_too_large`: one prompt, or the batch's own fields together, exceed their bound.
    #[error("{}", .0.message)]
    TooLarge(Problem),
    /// 422 `invalid_request`: readable, and not a batch (no object, no prompts, too many prompts).
    #[error("{}", .0.message)]
    Invalid(Problem),
}

/// What a body may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of one prompt as it is sent, or of an NDJSON header. It stands in memory whole, and a few times over while it is
    /// stored and keyed.
    pub frame_bytes: usize,
    /// Bytes of the batch's own fields, names and values, all together.
    pub field_bytes: usize,
    /// Members that are no prompts, repeated ones counted.
    pub fields: usize,
    pub prompts: u64,
}

/// What helps where one prompt is too large.
const REMEDY: &str = "shorten it, send images by URL, or raise BATCHGATE_MAX_PROMPT";

impl Default for Bounds {
    /// 32 MiB for a prompt: what Anthropic takes as one request outside of batches, and half of a chunk by default.
    fn default() -> Bounds {
        Bounds { frame_bytes: 32 << 20, field_bytes: 16 << 20, fields: 1_000, prompts: Options::MAX_RESULTS }
    }
}

/// Cuts one body.
pub struct Splitter(Body);

enum Body {
    Json(json_body::JsonBody),
    Ndjson(ndjson_body::NdjsonBody),
}

impl Splitter {
    /// For `application/json`.
    pub fn json() -> Splitter {
        Splitter::json_within(Bounds::default())
    }

    /// For `application/x-ndjson`.
    pub fn ndjson() -> Splitter {
        Splitter::ndjson_within(Bounds::default())
    }

    pub fn json_within(bounds: Bounds) -> Splitter {
        Splitter(Body::Json(json_body::JsonBody::new(bounds)))
    }

    pub fn ndjson_within(bounds: Bounds) -> Splitter {
        Splitter(Body::Ndjson(ndjson_body::NdjsonBody::new(bounds)))
    }

    /// Takes the next bytes and appends the frames they complete. After an `Err` the splitter must not be used again;
    /// the frames before the fault are there.
    pub fn push(&mut self, bytes: &[u8], frames: &mut Vec<Frame>) -> Result<(), FrameError> {
        match &mut self.0 {
            Body::Json(body) => body.push(bytes, frames),
            Body::Ndjson(body) => body.push(bytes, frames),
        }
    }

    /// The body has ended: by its length, not by a broken connection. The last line of NDJSON may come out here.
    /// A body without prompts is an `Err` too.
    pub fn finish(self, frames: &mut Vec<Frame>) -> Result<(), FrameError> {
        match self.0 {
            Body::Json(body) => body.finish(),
            Body::Ndjson(body) => body.finish(frames),
        }
    }

    /// Prompts that came out so far.
    pub fn prompts(&self) -> u64 {
        match &self.0 {
            Body::Json(body) => body.prompts(),
            Body::Ndjson(body) => body.prompts(),
        }
    }
}

#[cfg(test)]
mod tests;
