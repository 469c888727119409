//! A file on its way to POST /batches: what it is, and the command's own options laid into it. Nothing of HTTP.
//!
//! NDJSON streams as it is; options go into its header line, or into one that is put before it. JSON streams as it is,
//! too; only with options is it read whole, since a member of its may have to give way.

use super::failure::Failure;
use anyhow::Context;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Map, Value, value::RawValue};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, SeekFrom},
    path::{Path, PathBuf},
};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

/// How much of a file is looked at to tell what it is; a longer first line is no header.
const LOOK: u64 = 1 << 20;

/// How a body is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Json,
    Ndjson,
}

/// A file, ready to be sent as often as it takes.
#[derive(Debug)]
pub(crate) struct Upload {
    path: PathBuf,
    pub(crate) kind: Kind,
    /// Sent in place of the file's first `skip` bytes.
    head: Bytes,
    skip: u64,
    file_bytes: u64,
    /// Lines that `head` put before those of the file: the gateway counts them, the file's owner does not.
    pub(crate) added_lines: u64,
}

impl Upload {
    /// Opens a file; `options` win over what it says of the batch.
    pub(crate) fn open(path: &Path, options: &Map<String, Value>) -> Result<Upload, Failure> {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        let meta = file.metadata().with_context(|| format!("look at {}", path.display()))?;
        if !meta.is_file() {
            return Err(Failure::Usage(format!(
                "{} is not a file: it must be possible to read it twice",
                path.display()
            )));
        }
        let mut look = Vec::new();
        file.take(LOOK).read_to_end(&mut look).with_context(|| format!("read {}", path.display()))?;
        let kind = Kind::of(path, &look);
        let mut upload =
            Upload { path: path.to_owned(), kind, head: Bytes::new(), skip: 0, file_bytes: meta.len(), added_lines: 0 };
        if options.is_empty() {
            return Ok(upload);
        }
        match kind {
            Kind::Ndjson => {
                let header = with_header(&look, options);
                (upload.head, upload.skip, upload.added_lines) =
                    (header.bytes.into(), header.replaces, header.added_lines);
            }
            Kind::Json => {
                let whole = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
                upload.head = with_members(&whole, options)
                    .with_context(|| format!("lay the options into {}: it is not a JSON object", path.display()))?
                    .into();
                upload.skip = upload.file_bytes;
            }
        }
        Ok(upload)
    }

    /// Bytes of the body.
    pub(crate) fn len(&self) -> u64 {
        self.head.len() as u64 + self.file_bytes.saturating_sub(self.skip)
    }

    /// The body, from the start.
    pub(crate) async fn stream(&self) -> Result<impl Stream<Item = io::Result<Bytes>> + Send + use<>, Failure> {
        let opened = async {
            let mut file = tokio::fs::File::open(&self.path).await?;
            file.seek(SeekFrom::Start(self.skip)).await?;
            io::Result::Ok(file)
        };
        let file = opened.await.with_context(|| format!("read {}", self.path.display()))?;
        // A file that grows meanwhile is sent as long as it was: the length is promised before the body.
        let rest = file.take(self.file_bytes.saturating_sub(self.skip));
        let head = self.head.clone();
        Ok(stream::iter((!head.is_empty()).then_some(Ok(head))).chain(ReaderStream::with_capacity(rest, 64 << 10)))
    }
}

impl Kind {
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Kind::Json => "application/json",
            Kind::Ndjson => "application/x-ndjson",
        }
    }

    /// By the extension where it is sure (`.json` is used for both), else by the first line: NDJSON if that is a whole
    /// JSON value which is not itself a batch.
    fn of(path: &Path, look: &[u8]) -> Kind {
        let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        if matches!(extension.as_deref(), Some("ndjson" | "jsonl")) {
            return Kind::Ndjson;
        }
        match serde_json::from_slice(first_line(look).text) {
            Ok(Value::Object(members)) if !members.contains_key("prompts") => Kind::Ndjson,
            Ok(Value::String(_)) => Kind::Ndjson,
            Ok(_) | Err(_) => Kind::Json,
        }
    }
}

/// The first line that is not blank, and where it lies.
struct FirstLine<'a> {
    /// Bytes of a byte order mark, if there is one.
    mark: usize,
    start: usize,
    /// Without the line end.
    text: &'a [u8],
}

fn first_line(look: &[u8]) -> FirstLine<'_> {
    let mark = if look.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let mut start = mark;
    loop {
        let line = look[start..].split(|&byte| byte == b'\n').next().unwrap_or_default();
        let next = start + line.len() + 1;
        if line.trim_ascii().is_empty() && next < look.len() {
            start = next;
            continue;
        }
        return FirstLine { mark, start, text: line.strip_suffix(b"\r").unwrap_or(line) };
    }
}

/// What is sent in place of the first bytes of an NDJSON file.
#[derive(Debug, PartialEq)]
struct Header {
    bytes: Vec<u8>,
    replaces: u64,
    added_lines: u64,
}

fn with_header(look: &[u8], options: &Map<String, Value>) -> Header {
    let first = first_line(look);
    let own = match serde_json::from_slice::<Value>(first.text) {
        Ok(Value::Object(mut line)) if line.len() == 1 => match line.remove("batch") {
            Some(Value::Object(batch)) => Some(batch),
            _ => None,
        },
        _ => None,
    };
    let line =
        |batch: Map<String, Value>| Value::Object(Map::from_iter([("batch".to_owned(), batch.into())])).to_string();
    match own {
        Some(mut batch) => {
            batch.extend(options.clone());
            let mut bytes = look[first.mark..first.start].to_vec(); // blank lines count as lines
            bytes.extend(line(batch).into_bytes());
            Header { bytes, replaces: (first.start + first.text.len()) as u64, added_lines: 0 }
        }
        None => {
            let bytes = (line(options.clone()) + "\n").into_bytes();
            Header { bytes, replaces: first.mark as u64, added_lines: 1 }
        }
    }
}

fn with_members(whole: &[u8], options: &Map<String, Value>) -> anyhow::Result<Vec<u8>> {
    let whole = whole.strip_prefix(b"\xef\xbb\xbf").unwrap_or(whole);
    let mut members: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(whole)?;
    for (name, value) in options {
        members.insert(name.clone(), serde_json::value::to_raw_value(value)?);
    }
    Ok(serde_json::to_vec(&members)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn options(value: Value) -> Map<String, Value> {
        serde_json::from_value(value).expect("an object")
    }

    #[test]
    fn files_are_told_apart_by_name_or_first_line() {
        let check = |name: &str, content: &str, expect| {
            assert_eq!(Kind::of(Path::new(name), content.as_bytes()), expect, "{name}: {content}");
        };
        check("a.ndjson", "{\"prompts\": []}", Kind::Ndjson);
        check("a.JSONL", "", Kind::Ndjson);
        check("a.json", "{\"model\": \"m\",\n \"prompts\": [\"a\"]}", Kind::Json);
        check("a.json", "{\"model\": \"m\", \"prompts\": [\"a\"]}\n", Kind::Json);
        check("a.json", "{\"batch\": {\"model\": \"m\"}}\n\"a\"\n", Kind::Ndjson);
        check("a.txt", "\u{feff}\r\n\r\n{\"custom_id\": \"a\", \"params\": {}}\r\n", Kind::Ndjson);
        check("a", "\"Say 0\"\n\"Say 1\"\n", Kind::Ndjson);
        check("a", "nonsense", Kind::Json);
        check("a", "", Kind::Json);
        check("a", "\n\n", Kind::Json);
    }

    #[test]
    fn options_go_into_the_header_or_before_the_lines() {
        let given = options(json!({"chunk": 2}));
        assert_eq!(
            with_header(b"\n{\"batch\": {\"model\": \"m\", \"chunk\": 9}}\r\n\"a\"", &given),
            Header { bytes: b"\n{\"batch\":{\"chunk\":2,\"model\":\"m\"}}".to_vec(), replaces: 38, added_lines: 0 }
        );
        assert_eq!(
            with_header(b"\xef\xbb\xbf\"a\"\n\"b\"", &given),
            Header { bytes: b"{\"batch\":{\"chunk\":2}}\n".to_vec(), replaces: 3, added_lines: 1 }
        );
    }

    #[test]
    fn json_members_give_way_and_the_rest_keeps_its_digits() {
        let whole = br#"{"prompts": [{"params": {"seed": 9007199254740993, "x": 1.0e400}}], "model": "old"}"#;
        let merged = with_members(whole, &options(json!({"model": "new"}))).expect("an object");
        let text = String::from_utf8(merged).expect("UTF-8");
        assert_eq!(text, r#"{"model":"new","prompts":[{"params": {"seed": 9007199254740993, "x": 1.0e400}}]}"#);
        assert!(with_members(b"[1]", &Map::new()).is_err());
    }

    #[tokio::test]
    async fn what_is_sent_has_the_length_it_promises() {
        let path = std::env::temp_dir().join(format!("batchgate-upload-{}.ndjson", uuid::Uuid::now_v7()));
        for (content, given, expect) in [
            ("{\"batch\": {}}\r\n\"a\"\n", json!({"chunk": 2}), "{\"batch\":{\"chunk\":2}}\r\n\"a\"\n"),
            ("\"a\"", json!({"chunk": 2}), "{\"batch\":{\"chunk\":2}}\n\"a\""),
            ("\"a\"", json!({}), "\"a\""),
            ("", json!({}), ""),
        ] {
            std::fs::write(&path, content).expect("a temp file");
            let upload = Upload::open(&path, &options(given)).expect("a file");
            for _ in 0..2 {
                let chunks: Vec<_> = upload.stream().await.expect("opens again").collect().await;
                let sent: Vec<u8> = chunks.into_iter().flat_map(|chunk| chunk.expect("reads")).collect();
                assert_eq!(String::from_utf8_lossy(&sent), expect);
                assert_eq!(upload.len(), sent.len() as u64);
            }
        }
        std::fs::remove_file(&path).expect("our own file");
        assert!(matches!(Upload::open(&std::env::temp_dir(), &Map::new()), Err(Failure::Usage(_))));
    }
}
