//! The file calls. Uploads go to disk as they come, in any order of parts, so limits are judged at the end.

use std::path::Path;

use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, multipart::Field};
use http::Request;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{
    file::{Content, StoredFile, read_head},
    page::{Length, Paging, list as list_answer},
    wire::{bad_value, missing, whole_number},
};
use crate::sim::{batch::new_id, calls::Call, clock::DAY, delivery::Outgoing, problem::Problem, settings::Framing};

const PURPOSES: [&str; 6] = ["assistants", "batch", "fine-tune", "vision", "user_data", "evals"];
/// So much of a file is looked at on upload.
const LOOK: usize = 1 << 16;
const MAX_FIELD_BYTES: usize = 1000;

/// What a form said.
#[derive(Default)]
struct Form {
    purpose: Option<String>,
    anchor: Option<String>,
    seconds: Option<String>,
    filename: Option<String>,
    bytes: u64,
}

pub(crate) async fn create(call: &mut Call) -> Result<Outgoing, Problem> {
    let settings = call.sim.world().settings.openai.clone();
    let path = call.sim.spool.fresh();
    let form = receive(call, &path, settings.max_file_bytes).await?;
    let purpose = form.purpose.as_deref().ok_or_else(|| missing("purpose"))?;
    let filename = form.filename.as_deref().ok_or_else(|| missing("file"))?;
    if !PURPOSES.contains(&purpose) {
        return Err(bad_value("purpose", purpose, PURPOSES));
    }
    let is_batch = purpose == "batch";
    if form.bytes > if is_batch { settings.max_batch_file_bytes } else { settings.max_file_bytes } {
        return Err(Problem::invalid("File is too large.").param("file"));
    }
    // Bare bytes come as `upload` from the Python SDK, so a name without extension is as good.
    let is_well_named = filename.ends_with(".jsonl") || !filename.contains('.');
    if is_batch && !(is_well_named && starts_like_jsonl(&read_head(&path, LOOK).await?)) {
        return Err(Problem::invalid("Invalid file format for Batch API. Must be .jsonl").param("file"));
    }
    let lifetime = lifetime(&form, is_batch)?;
    let now = call.now();
    let file = StoredFile {
        id: new_id("file-"),
        account: call.account.clone(),
        filename: filename.to_owned(),
        purpose: purpose.to_owned(),
        created: now,
        expires: lifetime.map(|seconds| now + seconds),
        visible: now + call.fault.hidden_s,
        processed: now + settings.file_processing_s,
        deleted: None,
        content: Content::Upload(path),
    };
    let rendered = file.render(&call.sim, now).await?;
    call.made(&file.id);
    call.sim.world().add_file(file);
    Ok(Outgoing::json(200, &rendered))
}

/// Read the form and put its file to `path`; what is over the limit is counted but not kept.
async fn receive(call: &mut Call, path: &Path, max_bytes: u64) -> Result<Form, Problem> {
    let unreadable = || Problem::invalid("Could not parse multipart form.");
    let mut request = Request::from_parts(call.parts.clone(), std::mem::take(&mut call.body));
    DefaultBodyLimit::disable().apply(&mut request);
    let mut parts = Multipart::from_request(request, &()).await.map_err(|_| unreadable())?;
    let mut form = Form::default();
    while let Some(part) = parts.next_field().await.map_err(|_| unreadable())? {
        let slot = match part.name().unwrap_or_default() {
            "file" => {
                form.filename = Some(part.file_name().filter(|name| !name.is_empty()).unwrap_or("upload").to_owned());
                form.bytes = save(part, path, max_bytes).await?.ok_or_else(unreadable)?;
                continue;
            }
            "purpose" => &mut form.purpose,
            "expires_after[anchor]" => &mut form.anchor,
            "expires_after[seconds]" => &mut form.seconds,
            _ => continue,
        };
        *slot = Some(short_text(part).await.ok_or_else(unreadable)?);
    }
    Ok(form)
}

/// The size of the part, or None if the form ended within it.
async fn save(mut part: Field<'_>, path: &Path, max_bytes: u64) -> std::io::Result<Option<u64>> {
    let mut file = tokio::io::BufWriter::with_capacity(1 << 18, tokio::fs::File::create(path).await?);
    let mut size = 0;
    loop {
        match part.chunk().await {
            Ok(Some(bytes)) => {
                size += bytes.len() as u64;
                if size <= max_bytes {
                    file.write_all(&bytes).await?;
                }
            }
            Ok(None) => break,
            Err(_) => return Ok(None),
        }
    }
    file.flush().await?;
    Ok(Some(size))
}

async fn short_text(mut part: Field<'_>) -> Option<String> {
    let mut text = Vec::new();
    while let Some(bytes) = part.chunk().await.ok()? {
        let room = MAX_FIELD_BYTES.saturating_sub(text.len());
        text.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Only the beginning counts: the first line must be a JSON object, as far as it is read.
fn starts_like_jsonl(head: &[u8]) -> bool {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    match text.iter().position(|byte| *byte == b'\n') {
        Some(end) => is_object(&text[..end]),
        None => is_object(text) || (head.len() == LOOK && text.starts_with(b"{")),
    }
}

fn is_object(line: &[u8]) -> bool {
    serde_json::from_slice::<Value>(line).is_ok_and(|value| value.is_object())
}

#[expect(clippy::cast_precision_loss, reason = "30 days of seconds are exact")]
fn lifetime(form: &Form, is_batch: bool) -> Result<Option<f64>, Problem> {
    if form.anchor.is_none() && form.seconds.is_none() {
        return Ok(is_batch.then_some(30.0 * DAY));
    }
    match form.anchor.as_deref() {
        Some("created_at") => {}
        other => return Err(bad_value("expires_after[anchor]", other.unwrap_or("nothing"), ["created_at"])),
    }
    let seconds = whole_number("expires_after[seconds]", &json!(form.seconds), 3600..=2_592_000)?;
    Ok(Some(seconds as f64))
}

pub(crate) async fn list(call: &mut Call) -> Result<Outgoing, Problem> {
    let paging: Paging = call.query()?;
    call.sim.settle().await;
    let now = call.now();
    let mut files: Vec<_> = {
        let world = call.sim.world();
        let wanted = |file: &&StoredFile| {
            file.account == call.account
                && file.present(now)
                && paging.purpose.as_ref().is_none_or(|purpose| file.purpose == *purpose)
        };
        world.files.iter().filter(wanted).cloned().collect()
    };
    match paging.order.as_deref() {
        Some("asc") => {}
        None | Some("desc") => files.reverse(),
        Some(other) => return Err(bad_value("order", other, ["asc", "desc"])),
    }
    let (page, more) = paging.page(files, |file| &file.id, Length { default: 10_000, most: 10_000 })?;
    let mut data = Vec::new();
    for file in page {
        data.push(file.render(&call.sim, now).await?);
    }
    Ok(list_answer(&data, more))
}

fn find(call: &Call) -> Result<StoredFile, Problem> {
    let now = call.now();
    let mut world = call.sim.world();
    world.find_file(&call.account, &call.id, now).cloned().ok_or_else(|| {
        Problem::new(404, "invalid_request_error", format!("No such File object: {}", call.id)).param("id")
    })
}

pub(crate) async fn get(call: &mut Call) -> Result<Outgoing, Problem> {
    Ok(Outgoing::json(200, &find(call)?.render(&call.sim, call.now()).await?))
}

pub(crate) fn delete(call: &mut Call) -> Result<Outgoing, Problem> {
    let file = find(call)?;
    let now = call.now();
    if let Some(stored) = call.sim.world().file(&file.id) {
        stored.deleted = Some(now);
    }
    Ok(Outgoing::json(200, &json!({"id": file.id, "object": "file", "deleted": true})))
}

pub(crate) async fn content(call: &mut Call) -> Result<Outgoing, Problem> {
    let file = find(call)?;
    let path = file.path(&call.sim).await?;
    let ranges = call.sim.world().settings.common.content_ranges;
    let out = Outgoing::file(path, "application/octet-stream", Framing::Length, ranges).await?;
    Ok(out.header("content-disposition", format!("attachment; filename=\"{}.jsonl\"", file.id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_file_is_looked_at() {
        let check = |head: &[u8], good| assert_eq!(starts_like_jsonl(head), good, "{}", String::from_utf8_lossy(head));
        check(b"{\"a\": 1}\nnot json", true);
        check(b"\xef\xbb\xbf{\"a\": 1}", true);
        check(b"", false);
        check(b"[1]\n", false);
        check(b"{\"a\": \n1}", false);
        let mut long = vec![b'x'; LOOK];
        long[0] = b'{';
        check(&long, true);
    }

    #[test]
    fn batch_files_live_for_thirty_days_unless_told() {
        let form = |anchor: Option<&str>, seconds: Option<&str>| Form {
            anchor: anchor.map(Into::into),
            seconds: seconds.map(Into::into),
            ..Form::default()
        };
        assert_eq!(lifetime(&form(None, None), true).ok(), Some(Some(2_592_000.0)));
        assert_eq!(lifetime(&form(None, None), false).ok(), Some(None));
        assert_eq!(lifetime(&form(Some("created_at"), Some("3600")), true).ok(), Some(Some(3600.0)));
        assert!(lifetime(&form(Some("created_at"), Some("60")), true).is_err());
        assert!(lifetime(&form(None, Some("3600")), true).is_err());
    }
}
