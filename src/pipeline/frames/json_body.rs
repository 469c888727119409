//! A JSON body: members in any order, the elements of `prompts` one by one.

use super::{
    Bounds, Frame, FrameError, REMEDY,
    cut::{ByteOrderMark, Cut, CutFault, space},
};
use crate::domain::{
    batch::FieldText,
    problem::{Problem, join},
    prompt::PromptText,
};
use bytes::Bytes;

pub(super) struct JsonBody {
    bounds: Bounds,
    mark: ByteOrderMark,
    /// What is expected next, or once the cut is made.
    state: State,
    /// What is being read.
    cut: Option<(Part, Cut)>,
    /// Bytes of the body before the current one.
    offset: u64,
    /// The member being read.
    name: String,
    prompts: Option<u64>,
    fields: usize,
    field_bytes: usize,
}

#[derive(Clone, Copy)]
enum State {
    Body,
    NameOrEnd,
    Name,
    Colon,
    Value,
    AfterMember,
    PromptOrEnd,
    Prompt,
    AfterPrompt,
    End,
}

#[derive(Clone, Copy)]
enum Part {
    /// A body that is no object: read to its end, to tell what is not JSON from what is not a batch.
    Body,
    Name,
    Field,
    Prompt,
}

impl JsonBody {
    pub(super) fn new(bounds: Bounds) -> JsonBody {
        JsonBody {
            bounds,
            mark: ByteOrderMark::default(),
            state: State::Body,
            cut: None,
            offset: 0,
            name: String::new(),
            prompts: None,
            fields: 0,
            field_bytes: 0,
        }
    }

    pub(super) fn prompts(&self) -> u64 {
        self.prompts.unwrap_or(0)
    }

    pub(super) fn push(&mut self, bytes: &[u8], frames: &mut Vec<Frame>) -> Result<(), FrameError> {
        let skipped = self.mark.skip(bytes).ok_or_else(|| self.broken_at(0, "invalid UTF-8"))?;
        let mut rest = self.pass(bytes, skipped);
        loop {
            if let Some((part, mut cut)) = self.cut.take() {
                match cut.feed(rest).map_err(|fault| self.uncut(part, fault))? {
                    Some((whole, own)) => {
                        rest = self.pass(rest, own);
                        self.state = self.finished(part, whole, frames)?;
                    }
                    None => {
                        self.offset += rest.len() as u64;
                        self.cut = Some((part, cut));
                        return Ok(());
                    }
                }
            }
            rest = self.pass(rest, space(rest));
            let Some(&byte) = rest.first() else { return Ok(()) };
            if let Some(state) = self.step(byte)? {
                self.state = state;
                rest = self.pass(rest, 1);
            }
        }
    }

    pub(super) fn finish(mut self) -> Result<(), FrameError> {
        if let Some((Part::Body, cut)) = self.cut.take() {
            return Err(cut.end().map_or_else(|fault| self.uncut(Part::Body, fault), |_| self.no_object()));
        }
        match (&self.state, self.prompts) {
            (State::End, Some(1..)) => Ok(()),
            (State::End, Some(0)) => Err(self.invalid("/prompts", "is empty: a batch has at least one prompt")),
            (State::End, None) => Err(self.invalid("/prompts", "is missing: a batch has an array of prompts")),
            (State::Body, _) if !self.mark.is_torn() => Err(self.broken("the body is empty")),
            _ => Err(self.broken("the body is broken off")),
        }
    }

    fn pass<'a>(&mut self, bytes: &'a [u8], count: usize) -> &'a [u8] {
        self.offset += count as u64;
        &bytes[count..]
    }

    /// The state after this byte; none if a value begins with it, for which a cut was made ready.
    fn step(&mut self, byte: u8) -> Result<Option<State>, FrameError> {
        Ok(Some(match (self.state, byte) {
            (State::Body, b'{') => State::NameOrEnd,
            (State::Body, _) => return Ok(self.cut(Part::Body)),
            (State::NameOrEnd | State::AfterMember, b'}') => State::End,
            (State::NameOrEnd | State::Name, b'"') => return Ok(self.cut(Part::Name)),
            (State::NameOrEnd | State::Name, _) => return Err(self.broken("a member name must be a string")),
            (State::Colon, b':') => State::Value,
            (State::Colon, _) => return Err(self.broken("a colon is missing after a member name")),
            (State::Value, _) if self.name == "prompts" => self.open_prompts(byte)?,
            (State::Value, _) => return Ok(self.cut(Part::Field)),
            (State::AfterMember, b',') => State::Name,
            (State::AfterMember, _) => return Err(self.broken("a comma or `}` is missing")),
            (State::PromptOrEnd | State::AfterPrompt, b']') => State::AfterMember,
            (State::PromptOrEnd | State::Prompt, _) => return Ok(self.cut(Part::Prompt)),
            (State::AfterPrompt, b',') => State::Prompt,
            (State::AfterPrompt, _) => return Err(self.broken("a comma or `]` is missing")),
            (State::End, _) => return Err(self.broken("something follows the body")),
        }))
    }

    fn open_prompts(&mut self, byte: u8) -> Result<State, FrameError> {
        if self.prompts.is_some() {
            return Err(self.broken("`prompts` is there twice"));
        }
        if byte != b'[' {
            return Err(self.invalid("/prompts", "must be an array of prompts"));
        }
        self.prompts = Some(0);
        Ok(State::PromptOrEnd)
    }

    fn cut(&mut self, part: Part) -> Option<State> {
        let (depth, bound) = match part {
            Part::Body => (0, self.bounds.field_bytes),
            Part::Name | Part::Field => (1, self.bounds.field_bytes - self.field_bytes),
            Part::Prompt => (2, self.bounds.frame_bytes),
        };
        self.cut = Some((part, Cut::new(depth, bound, self.offset)));
        None
    }

    fn finished(&mut self, part: Part, whole: Bytes, frames: &mut Vec<Frame>) -> Result<State, FrameError> {
        match part {
            Part::Body => Err(self.no_object()),
            Part::Name => {
                self.field_bytes += whole.len();
                self.fields += 1;
                if self.fields > self.bounds.fields {
                    return Err(FrameError::TooLarge(Problem::new(
                        "",
                        None,
                        format!("the body has more than {} members", self.bounds.fields),
                    )));
                }
                self.name = serde_json::from_slice(&whole).map_err(|_| {
                    self.invalid("", "an unpaired surrogate in a member name is no character: remove it")
                })?;
                Ok(State::Colon)
            }
            Part::Field => {
                self.field_bytes += whole.len();
                let name = std::mem::take(&mut self.name);
                frames.push(Frame::Field(FieldText { name, line: None, bytes: whole }));
                Ok(State::AfterMember)
            }
            Part::Prompt => {
                let position = self.prompts();
                if position == self.bounds.prompts {
                    return Err(
                        self.invalid("/prompts", &format!("has more than {position} prompts: make it two batches"))
                    );
                }
                self.prompts = Some(position + 1);
                frames.push(Frame::Prompt(PromptText { position, line: None, bytes: whole }));
                Ok(State::AfterPrompt)
            }
        }
    }

    /// Pointer to what is being read.
    fn pointer(&self) -> String {
        match self.state {
            State::Prompt | State::PromptOrEnd | State::AfterPrompt => format!("/prompts/{}", self.prompts()),
            State::Value => join("", &self.name),
            _ => String::new(),
        }
    }

    fn broken(&self, what: &str) -> FrameError {
        self.broken_at(self.offset, what)
    }

    fn broken_at(&self, at: u64, what: &str) -> FrameError {
        FrameError::Malformed(Problem::new(self.pointer(), None, format!("not JSON at byte {at} of the body: {what}")))
    }

    fn no_object(&self) -> FrameError {
        self.invalid("", "the body must be an object with `prompts`")
    }

    fn invalid(&self, pointer: &str, message: &str) -> FrameError {
        FrameError::Invalid(Problem::new(pointer, None, message))
    }

    fn uncut(&self, part: Part, fault: CutFault) -> FrameError {
        match (fault, part) {
            (CutFault::Broken { at, what }, _) => self.broken_at(at, what),
            (CutFault::TooLarge { .. }, Part::Body) => self.no_object(),
            (CutFault::TooLarge { bound }, Part::Prompt) => FrameError::TooLarge(Problem::new(
                self.pointer(),
                None,
                format!("a prompt may have at most {bound} bytes: {REMEDY}"),
            )),
            (CutFault::TooLarge { .. }, Part::Name | Part::Field) => FrameError::TooLarge(Problem::new(
                self.pointer(),
                None,
                format!("all fields but `prompts` may have at most {} bytes together", self.bounds.field_bytes),
            )),
        }
    }
}
