//! Cuts one value out of the stream: the scanner finds its end, the bytes are kept, their bound and UTF-8 are checked.

use super::scan::Scanner;
use bytes::Bytes;

/// One value on its way in.
pub(super) struct Cut {
    scanner: Scanner,
    /// What earlier slices brought.
    kept: Vec<u8>,
    bound: usize,
    /// Absolute offset of the value's first byte.
    start: u64,
}

/// The value cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutFault {
    /// Not JSON at this absolute offset.
    Broken {
        at: u64,
        what: &'static str,
    },
    TooLarge {
        bound: usize,
    },
}

impl Cut {
    /// `depth`: arrays and objects open around the value.
    pub(super) fn new(depth: usize, bound: usize, start: u64) -> Cut {
        Cut { scanner: Scanner::new(depth), kept: Vec::new(), bound, start }
    }

    /// Takes what belongs to the value. `Some`: it is whole, and so many bytes of the slice were its own.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Option<(Bytes, usize)>, CutFault> {
        // One byte over the bound is looked at, to tell a value that ends there from one that does not; never more, so
        // that the same fault is found however the stream is sliced.
        let room = (self.bound - self.kept.len()).saturating_add(1);
        let bytes = &bytes[..bytes.len().min(room)];
        let end = self.scanner.feed(bytes).map_err(|fault| self.broken(fault.at, fault.what))?;
        let own = end.unwrap_or(bytes.len());
        if self.kept.len() + own > self.bound {
            return Err(CutFault::TooLarge { bound: self.bound });
        }
        if end.is_none() {
            self.kept.extend_from_slice(bytes);
            return Ok(None);
        }
        let whole = if self.kept.is_empty() {
            Bytes::copy_from_slice(&bytes[..own])
        } else {
            self.kept.extend_from_slice(&bytes[..own]);
            std::mem::take(&mut self.kept).into()
        };
        self.text(whole).map(|whole| Some((whole, own)))
    }

    /// Nothing follows: the value, if it is whole.
    pub(super) fn end(mut self) -> Result<Bytes, CutFault> {
        if self.scanner.may_end() {
            let kept = std::mem::take(&mut self.kept).into();
            return self.text(kept);
        }
        Err(self
            .broken(0, if self.scanner.inside_string() { "it breaks off inside a string" } else { "it breaks off" }))
    }

    fn text(&self, whole: Bytes) -> Result<Bytes, CutFault> {
        match std::str::from_utf8(&whole) {
            Ok(_) => Ok(whole),
            Err(error) => Err(CutFault::Broken { at: self.start + error.valid_up_to() as u64, what: "invalid UTF-8" }),
        }
    }

    /// `at` counts from the end of what is kept.
    fn broken(&self, at: usize, what: &'static str) -> CutFault {
        CutFault::Broken { at: self.start + (self.kept.len() + at) as u64, what }
    }
}

/// Passes over a byte order mark at the start of a stream.
#[derive(Default)]
pub(super) struct ByteOrderMark {
    seen: usize,
    passed: bool,
}

impl ByteOrderMark {
    const BYTES: [u8; 3] = [0xef, 0xbb, 0xbf];

    /// Bytes of the slice that belong to it; none if something else begins like it.
    pub(super) fn skip(&mut self, bytes: &[u8]) -> Option<usize> {
        for (n, byte) in bytes.iter().enumerate() {
            if self.passed {
                return Some(n);
            }
            if *byte == ByteOrderMark::BYTES[self.seen] {
                self.seen += 1;
                self.passed = self.seen == 3;
            } else if self.seen == 0 {
                self.passed = true;
                return Some(n);
            } else {
                return None;
            }
        }
        Some(bytes.len())
    }

    /// Did the stream end within it?
    pub(super) fn is_torn(&self) -> bool {
        !self.passed && self.seen > 0
    }
}

/// Bytes of white space at the start.
pub(super) fn space(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n')).count()
}
