//! Cuts a download into lines: at `\n` bytes only (U+2028 and its kin are text), whatever pieces it comes in.
//! Knows nothing of HTTP and nothing of JSON.

use bytes::{Buf, Bytes, BytesMut};

/// The longest line we hold in memory. The longest that is known to come is an embeddings answer: 2,048 inputs (the
/// most of a request) with 3,072 numbers of 21 characters each and a comma are 132 MiB.
pub(super) const MAX_LINE: usize = 160 * 1024 * 1024;

/// What stands between two line ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Not blank; without its `\r`, and the first one without a byte order mark.
    Line(Bytes),
    /// Longer than the limit; its bytes are gone.
    TooLong,
}

/// Takes bytes, gives lines.
pub(super) struct Lines {
    buffer: BytesMut,
    /// So many bytes of `buffer` hold no line end.
    searched: usize,
    /// The line in hand was too long; what is left of it is thrown away.
    skipping: bool,
    at_start: bool,
    limit: usize,
}

impl Lines {
    pub(super) fn new(limit: usize) -> Lines {
        Lines { buffer: BytesMut::new(), searched: 0, skipping: false, at_start: true, limit }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line; none until more bytes are pushed.
    pub(super) fn next(&mut self) -> Option<Piece> {
        loop {
            let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                if self.searched > self.limit {
                    self.skipping = true;
                }
                if self.skipping {
                    self.buffer.clear();
                    self.searched = 0;
                }
                return None;
            };
            let line = self.buffer.split_to(self.searched + end).freeze();
            self.buffer.advance(1);
            self.searched = 0;
            if let Some(piece) = self.piece(line) {
                return Some(piece);
            }
        }
    }

    /// The last line, where the download had no final line end.
    pub(super) fn finish(&mut self) -> Option<Piece> {
        self.searched = 0;
        let line = self.buffer.split().freeze();
        self.piece(line)
    }

    fn piece(&mut self, mut line: Bytes) -> Option<Piece> {
        if std::mem::take(&mut self.at_start) && line.starts_with(b"\xEF\xBB\xBF") {
            line.advance(3);
        }
        if std::mem::take(&mut self.skipping) || line.len() > self.limit {
            return Some(Piece::TooLong);
        }
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        (!line.trim_ascii().is_empty()).then_some(Piece::Line(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &[u8], step: usize, limit: usize) -> Vec<Piece> {
        let (mut lines, mut found) = (Lines::new(limit), Vec::new());
        for bytes in text.chunks(step) {
            lines.push(bytes);
            while let Some(piece) = lines.next() {
                found.push(piece);
            }
        }
        found.extend(lines.finish());
        found
    }

    fn line(text: &str) -> Piece {
        Piece::Line(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn any_pieces_give_the_same_lines() {
        let text = "\u{feff}{\"a\":\"x\u{2028}y\u{85}\"}\r\n\n \t\r\n{\"b\":\r1}\n{\"c\":2}";
        let expect = [line("{\"a\":\"x\u{2028}y\u{85}\"}"), line("{\"b\":\r1}"), line("{\"c\":2}")];
        for step in 1..text.len() {
            assert_eq!(cut(text.as_bytes(), step, 100), expect, "{step}");
        }
    }

    #[test]
    fn a_line_beyond_the_limit_costs_only_itself() {
        for step in [1, 3, 100] {
            assert_eq!(
                cut(b"ab\n0123456789\ncd\n0123456789", step, 5),
                [line("ab"), Piece::TooLong, line("cd"), Piece::TooLong]
            );
        }
    }

    #[test]
    fn nothing_gives_nothing() {
        assert_eq!(cut(b"\n\r\n", 1, 5), []);
        assert_eq!(Lines::new(5).finish(), None);
    }
}
