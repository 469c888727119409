//! Writes one results file, spoiled as the batch's `results` fault asks.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::PathBuf,
};

use serde_json::{Value, json};

use super::{faults::Spoil, json::encode};

pub(crate) struct ResultFile {
    path: PathBuf,
    spoil: Spoil,
    file: BufWriter<File>,
    bytes: u64,
    /// How many lines came, those that are dropped included.
    seen: usize,
    /// Lines that come once more, or differently, at the end.
    tail: Vec<String>,
}

impl ResultFile {
    pub(crate) fn create(path: PathBuf, spoil: Spoil) -> io::Result<Self> {
        let mut file = Self {
            file: BufWriter::with_capacity(1 << 18, File::create(&path)?),
            path,
            spoil,
            bytes: 0,
            seen: 0,
            tail: Vec::new(),
        };
        if file.spoil.bom {
            file.put(b"\xef\xbb\xbf")?;
        }
        Ok(file)
    }

    pub(crate) fn add(&mut self, line: Value) -> io::Result<()> {
        self.add_with(line, None)
    }

    /// Write a line; `conflict` is another outcome under the same id, for when that is asked for.
    pub(crate) fn add_with(&mut self, mut line: Value, conflict: Option<Value>) -> io::Result<()> {
        self.seen += 1;
        let Some(nth) = self.seen.checked_sub(self.spoil.drop).filter(|nth| *nth > 0) else { return Ok(()) };
        if nth == 1
            && let Some(bytes) = self.spoil.pad
        {
            line["padding"] = "x".repeat(bytes).into();
        }
        let text = encode(&line);
        self.put_line(&text)?;
        if nth <= self.spoil.duplicate {
            self.tail.push(text);
        }
        if let Some(conflict) = conflict.filter(|_| nth <= self.spoil.conflict) {
            self.tail.push(encode(&conflict));
        }
        if nth == 1 { self.put_strays(line) } else { Ok(()) }
    }

    /// What belongs to no request: ids that were never sent, broken lines, blank lines.
    fn put_strays(&mut self, mut line: Value) -> io::Result<()> {
        for number in 0..self.spoil.unknown_id {
            line["custom_id"] = json!(format!("never-sent-{number}"));
            self.put_line(&encode(&line))?;
        }
        for _ in 0..self.spoil.garbage {
            self.put_line("{\"custom_id\": \"cut off")?;
        }
        for _ in 0..self.spoil.blank {
            self.put_line("")?;
        }
        Ok(())
    }

    pub(crate) fn close(mut self) -> io::Result<PathBuf> {
        for line in std::mem::take(&mut self.tail) {
            self.put_line(&line)?;
        }
        self.file.flush()?;
        if self.spoil.no_final_newline && self.seen > self.spoil.drop {
            self.file.get_ref().set_len(self.bytes - self.end().len() as u64)?;
        }
        Ok(self.path)
    }

    fn put_line(&mut self, line: &str) -> io::Result<()> {
        self.put(line.as_bytes())?;
        self.put(self.end())
    }

    fn end(&self) -> &'static [u8] {
        if self.spoil.crlf { b"\r\n" } else { b"\n" }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::spool::Spool;

    /// The file that three lines make when they are spoiled so.
    fn spoiled(spoil: Value) -> String {
        let spool = Spool::create(std::path::Path::new("/tmp")).expect("a temporary directory");
        let spoil = serde_json::from_value(spoil).expect("a proper fault");
        let mut file = ResultFile::create(spool.fresh(), spoil).expect("a new file");
        for id in ["a", "b", "c"] {
            let conflict = json!({"custom_id": id, "other": true});
            file.add_with(json!({"custom_id": id}), Some(conflict)).expect("room on the disk");
        }
        std::fs::read_to_string(file.close().expect("closes")).expect("it is there")
    }

    #[test]
    fn every_way_to_spoil_results() {
        let check = |spoil: Value, expected: &str| assert_eq!(spoiled(spoil.clone()), expected, "{spoil}");
        let [a, b, c] = ["{\"custom_id\":\"a\"}", "{\"custom_id\":\"b\"}", "{\"custom_id\":\"c\"}"];
        check(json!({}), &format!("{a}\n{b}\n{c}\n"));
        check(json!({"drop": 2}), &format!("{c}\n"));
        check(json!({"drop": 9, "no_final_newline": true}), "");
        check(json!({"duplicate": 1}), &format!("{a}\n{b}\n{c}\n{a}\n"));
        check(json!({"conflict": 1}), &format!("{a}\n{b}\n{c}\n{{\"custom_id\":\"a\",\"other\":true}}\n"));
        check(json!({"unknown_id": 1, "blank": 1}), &format!("{a}\n{{\"custom_id\":\"never-sent-0\"}}\n\n{b}\n{c}\n"));
        check(json!({"crlf": true, "bom": true, "no_final_newline": true}), &format!("\u{feff}{a}\r\n{b}\r\n{c}"));
        check(json!({"pad": 2}), &format!("{{\"custom_id\":\"a\",\"padding\":\"xx\"}}\n{b}\n{c}\n"));
        assert!(
            spoiled(json!({"garbage": 1}))
                .lines()
                .nth(1)
                .is_some_and(|line| serde_json::from_str::<Value>(line).is_err())
        );
    }
}
