//! An NDJSON body: one value a line, cut at `\n` bytes alone; the first may be the batch's header.

use super::{
    Bounds, Frame, FrameError, REMEDY,
    cut::{ByteOrderMark, Cut, CutFault, space},
};
use crate::domain::{batch::FieldText, json, problem::Problem, prompt::PromptText, span};
use bytes::Bytes;

pub(super) struct NdjsonBody {
    bounds: Bounds,
    mark: ByteOrderMark,
    state: State,
    /// Bytes of the body before the current one.
    offset: u64,
    /// The current line, from 1, and where it begins.
    line: u64,
    line_start: u64,
    /// Was there a line with something on it? Then no header can follow.
    begun: bool,
    prompts: u64,
}

enum State {
    /// Only white space so far in this line.
    Blank,
    Value(Cut),
    /// The line's value is whole; only white space may follow.
    Whole(Bytes),
}

impl NdjsonBody {
    pub(super) fn new(bounds: Bounds) -> NdjsonBody {
        NdjsonBody {
            bounds,
            mark: ByteOrderMark::default(),
            state: State::Blank,
            offset: 0,
            line: 1,
            line_start: 0,
            begun: false,
            prompts: 0,
        }
    }

    pub(super) fn prompts(&self) -> u64 {
        self.prompts
    }

    pub(super) fn push(&mut self, bytes: &[u8], frames: &mut Vec<Frame>) -> Result<(), FrameError> {
        let skipped = self.mark.skip(bytes).ok_or_else(|| self.broken(0, "invalid UTF-8"))?;
        self.offset += skipped as u64;
        let mut rest = &bytes[skipped..];
        loop {
            let end = span::line(rest);
            self.feed(&rest[..end])?;
            if end == rest.len() {
                return Ok(());
            }
            self.end_line(frames)?;
            self.offset += 1;
            self.line += 1;
            self.line_start = self.offset;
            rest = &rest[end + 1..];
        }
    }

    pub(super) fn finish(mut self, frames: &mut Vec<Frame>) -> Result<(), FrameError> {
        if self.mark.is_torn() {
            return Err(self.broken(0, "the body is broken off"));
        }
        self.end_line(frames)?;
        if self.prompts == 0 {
            return Err(
                self.invalid("/prompts", "there is none: a batch has at least one prompt, each on a line of its own")
            );
        }
        Ok(())
    }

    /// Takes a part of the current line.
    fn feed(&mut self, mut part: &[u8]) -> Result<(), FrameError> {
        while !part.is_empty() {
            let used = match &mut self.state {
                State::Blank | State::Whole(_) if space(part) > 0 => space(part),
                State::Blank => {
                    self.state = State::Value(Cut::new(0, self.bounds.frame_bytes, self.offset));
                    0
                }
                State::Whole(_) => return Err(self.broken(self.offset, "something follows the line's value")),
                State::Value(cut) => match cut.feed(part) {
                    Ok(Some((whole, own))) => {
                        self.state = State::Whole(whole);
                        own
                    }
                    Ok(None) => part.len(),
                    Err(fault) => return Err(self.uncut(fault)),
                },
            };
            self.offset += used as u64;
            part = &part[used..];
        }
        Ok(())
    }

    fn end_line(&mut self, frames: &mut Vec<Frame>) -> Result<(), FrameError> {
        match std::mem::replace(&mut self.state, State::Blank) {
            State::Blank => Ok(()),
            State::Value(cut) => {
                let whole = cut.end().map_err(|fault| self.uncut(fault))?;
                self.finished(whole, frames)
            }
            State::Whole(whole) => self.finished(whole, frames),
        }
    }

    fn finished(&mut self, whole: Bytes, frames: &mut Vec<Frame>) -> Result<(), FrameError> {
        let first = !std::mem::replace(&mut self.begun, true);
        if first && let Some(members) = header(&whole) {
            return self.header(members, frames);
        }
        if self.prompts == self.bounds.prompts {
            let message = format!("there are more than {}: make it two batches", self.bounds.prompts);
            return Err(self.invalid("/prompts", &message));
        }
        frames.push(Frame::Prompt(PromptText { position: self.prompts, line: Some(self.line), bytes: whole }));
        self.prompts += 1;
        Ok(())
    }

    fn header(&self, members: Vec<(String, Bytes)>, frames: &mut Vec<Frame>) -> Result<(), FrameError> {
        let size: usize = members.iter().map(|(name, value)| name.len() + value.len()).sum();
        let Bounds { fields, field_bytes, .. } = self.bounds;
        if size > field_bytes || members.len() > fields {
            let message = format!("the header may have at most {fields} members of {field_bytes} bytes together");
            return Err(FrameError::TooLarge(Problem::new("", Some(self.line), message)));
        }
        let line = Some(self.line);
        frames.extend(members.into_iter().map(|(name, bytes)| Frame::Field(FieldText { name, line, bytes })));
        Ok(())
    }

    fn broken(&self, at: u64, what: &str) -> FrameError {
        let message = format!("line {} is not JSON at byte {} of the line: {what}", self.line, at - self.line_start);
        FrameError::Malformed(Problem::new("", Some(self.line), message))
    }

    fn invalid(&self, pointer: &str, message: &str) -> FrameError {
        FrameError::Invalid(Problem::new(pointer, Some(self.line), message))
    }

    fn uncut(&self, fault: CutFault) -> FrameError {
        match fault {
            CutFault::Broken { at, what } => self.broken(at, what),
            CutFault::TooLarge { bound } => FrameError::TooLarge(Problem::new(
                "",
                Some(self.line),
                format!("a line may have at most {bound} bytes: {REMEDY}"),
            )),
        }
    }
}

/// The members of a header, repeated ones included: `{"batch": {...}}` with nothing else in it. Whatever else the line
/// holds, it is a prompt's, and `Prompt::parse` says what is wrong with it.
fn header(line: &[u8]) -> Option<Vec<(String, Bytes)>> {
    let outer = json::members(line)?;
    if outer.iter().any(|(name, _)| name != "batch") {
        return None;
    }
    let (_, last) = outer.last()?;
    json::members(last)
}
