//! `batchgate results`: the answers in order, to a file or standard output.
//!
//! Only whole lines are written. When the connection breaks, reading goes on behind the last whole line, so a file
//! never holds a line twice or half of one; it gets its name once it is complete.

use super::{
    Door,
    client::{Client, Read},
    failure::{Ending, Failure},
    out::{self, note},
    progress::Batch,
};
use anyhow::Context;
use futures_util::StreamExt;
use serde_json::Value;
use std::{fmt, io::IsTerminal, path::PathBuf, time::Duration};
use tokio::io::AsyncWriteExt;

/// Tries in a row, 0.5 s, 1 s, 2 s, ... apart, after which a gateway that never answered counts as unreachable,
const TRIES: u32 = 4;
/// and one that did, and may be restarting: two minutes.
const TRIES_AGAIN: u32 = 8;

#[derive(clap::Args, Debug)]
pub(crate) struct ResultsArgs {
    /// batch_...
    id: String,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Each result as soon as all before it are known, until the batch has ended
    #[arg(long)]
    follow: bool,
    /// Every line now; those without an answer as `pending`
    #[arg(long, conflicts_with = "follow")]
    partial: bool,
    /// With the provider's own body
    #[arg(long)]
    full: bool,
    /// Begin at this result
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: u64,
    #[command(flatten)]
    pub(crate) door: Door,
}

/// Where results go.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    Stdout,
    File(PathBuf),
}

impl From<PathBuf> for Target {
    fn from(path: PathBuf) -> Target {
        if path.as_os_str() == "-" { Target::Stdout } else { Target::File(path) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Stdout => f.write_str("-"),
            Target::File(path) => write!(f, "{}", path.display()),
        }
    }
}

pub(crate) async fn run(client: &Client, args: ResultsArgs) -> Result<Ending, Failure> {
    let read = Read { offset: args.offset, follow: args.follow, partial: args.partial, full: args.full };
    let target = args.output.map_or(Target::Stdout, Target::from);
    let lines = fetch(client, &args.id, read, &target).await.inspect_err(|failure| {
        if matches!(failure, Failure::Refused(problem) if problem.code == "batch_running") {
            note("the batch is still running: --follow waits for each answer, --partial shows what is known");
        }
    })?;
    let batch = Batch::read(&client.batch(&args.id, None).await?)?;
    if target != Target::Stdout {
        note(&format!("{} · {} results to {target}", batch.outcome(), out::count(lines)));
    }
    Ok(if batch.lacking() > 0 { Ending::Lacking } else { Ending::Fine })
}

/// How far a reading has come.
struct Cursor {
    /// The result to read next.
    at: u64,
    /// The gateway has answered at least once.
    reached: bool,
}

/// Reads the results to their end; returns how many lines were written.
pub(crate) async fn fetch(client: &Client, id: &str, read: Read, target: &Target) -> Result<u64, Failure> {
    let mut sink = Sink::open(target).await?;
    let mut cursor = Cursor { at: read.offset, reached: false };
    let mut breaks = 0;
    loop {
        let before = cursor.at;
        let broken = match copy(client, id, read, &mut sink, &mut cursor).await {
            Ok(()) => break,
            Err(failure @ Failure::Unreachable { .. }) => failure,
            Err(failure) => return Err(failure),
        };
        breaks = if cursor.at > before { 1 } else { breaks + 1 };
        if breaks > if cursor.reached { TRIES_AGAIN } else { TRIES } {
            return Err(broken);
        }
        tokio::time::sleep(Duration::from_millis(250) * (1 << breaks)).await;
    }
    sink.close().await?;
    Ok(cursor.at - read.offset)
}

/// All results of a batch small enough for memory.
pub(crate) async fn read_all(client: &Client, id: &str, read: Read) -> Result<Vec<Value>, Failure> {
    let mut sink = Sink::Memory(Vec::new());
    copy(client, id, read, &mut sink, &mut Cursor { at: read.offset, reached: false }).await?;
    let Sink::Memory(bytes) = sink else { return Ok(Vec::new()) };
    let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    Ok(lines.map(serde_json::from_slice).collect::<Result<_, _>>().context("read the result lines")?)
}

/// One reading from the cursor on; it moves with every whole line that was written.
async fn copy(client: &Client, id: &str, read: Read, sink: &mut Sink, cursor: &mut Cursor) -> Result<(), Failure> {
    let mut stream = client.results(id, Read { offset: cursor.at, ..read }).await?;
    cursor.reached = true;
    let mut tail = Vec::new();
    while let Some(chunk) = stream.next().await {
        tail.extend_from_slice(&chunk?);
        let Some(end) = tail.iter().rposition(|&byte| byte == b'\n') else { continue };
        sink.write(&tail[..=end]).await?;
        cursor.at += tail[..=end].iter().filter(|&&byte| byte == b'\n').count() as u64;
        tail.drain(..=end);
    }
    if !tail.is_empty() {
        tail.push(b'\n');
        sink.write(&tail).await?;
        cursor.at += 1;
    }
    Ok(())
}

/// An open target.
enum Sink {
    Stdout,
    Memory(Vec<u8>),
    /// A pipe or a device: written as it is.
    Stream(tokio::fs::File),
    /// A terminal by its name (`/dev/tty`): as standard output is, where it is one.
    Terminal(tokio::fs::File),
    /// A file, under another name until it is complete.
    File {
        file: tokio::fs::File,
        part: PathBuf,
        path: PathBuf,
    },
}

impl Sink {
    async fn open(target: &Target) -> Result<Sink, Failure> {
        let Target::File(path) = target else { return Ok(Sink::Stdout) };
        let in_place = tokio::fs::metadata(path).await.is_ok_and(|meta| !meta.is_file());
        let mut part = path.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        let opened = if in_place {
            tokio::fs::OpenOptions::new().write(true).open(path).await
        } else {
            tokio::fs::File::create(&part).await
        };
        let file = opened.with_context(|| format!("write to {}", path.display()))?;
        let terminal = file.try_clone().await?.into_std().await.is_terminal();
        Ok(match in_place {
            true if terminal => Sink::Terminal(file),
            true => Sink::Stream(file),
            false => Sink::File { file, part, path: path.clone() },
        })
    }

    async fn write(&mut self, lines: &[u8]) -> Result<(), Failure> {
        match self {
            Sink::Stdout => Ok(out::lines(lines)?),
            Sink::Memory(bytes) => {
                bytes.extend_from_slice(lines);
                Ok(())
            }
            Sink::Stream(file) => Ok(file.write_all(lines).await?),
            Sink::Terminal(file) => Ok(file.write_all(out::inert_lines(lines).as_bytes()).await?),
            Sink::File { file, part, .. } => {
                Ok(file.write_all(lines).await.with_context(|| format!("write to {}", part.display()))?)
            }
        }
    }

    async fn close(self) -> Result<(), Failure> {
        match self {
            Sink::Stdout | Sink::Memory(_) => {}
            Sink::Stream(mut file) | Sink::Terminal(mut file) => file.flush().await?,
            Sink::File { mut file, part, path } => {
                file.flush().await.with_context(|| format!("write to {}", part.display()))?;
                drop(file);
                tokio::fs::rename(&part, &path)
                    .await
                    .with_context(|| format!("rename {} to {}", part.display(), path.display()))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::scripted::{Scripted, answer},
        *,
    };

    #[tokio::test]
    async fn a_broken_stream_is_read_on_behind_the_last_whole_line() {
        let broken =
            "HTTP/1.1 200 OK\r\ncontent-length: 99\r\nconnection: close\r\n\r\n{\"index\": 0}\n{\"index\": 1}\n{\"ind";
        let rest = answer("200 OK", "", "{\"index\": 2}\n");
        let server = Scripted::new(&[broken, &rest]).await;
        let path = std::env::temp_dir().join(format!("batchgate-results-{}", uuid::Uuid::now_v7()));
        let read = Read { follow: true, ..Read::default() };
        let lines = fetch(&server.client, "batch_1", read, &Target::File(path.clone())).await.expect("both parts");
        assert_eq!(lines, 3);
        let written = std::fs::read_to_string(&path).expect("it has its name");
        std::fs::remove_file(&path).expect("our own file");
        assert_eq!(written, "{\"index\": 0}\n{\"index\": 1}\n{\"index\": 2}\n");
        let asked = server.asked().await;
        assert!(asked[0].starts_with("GET /batches/batch_1/results?follow=true HTTP"), "{}", asked[0]);
        assert!(asked[1].starts_with("GET /batches/batch_1/results?offset=2&follow=true HTTP"), "{}", asked[1]);
    }
}
