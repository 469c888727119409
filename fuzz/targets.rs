//! What is fuzzed: everything that reads bytes of others, and what Redis gives back. One list for both engines: libFuzzer
//! (`./scripts/fuzz`, minutes) and the suite's own (`tests/it/fuzz.rs`, seconds). A target panics if what it asserts does
//! not hold; the corpus of each is `tests/fixtures/fuzz/<name>`.

use batchgate::{
    domain::{
        batch::{CacheMode, FieldText, Options},
        canonical,
        id::{BatchId, ChunkId},
        json,
        key::{CacheKey, Question},
        outcome::Outcome,
        prompt::{Endpoint, Prompt, PromptText},
        route::{DEFAULT_ANTHROPIC_MODELS, DEFAULT_OPENAI_MODELS, Glob, ProviderKind, Route, Routes},
    },
    pipeline::frames::{Frame, FrameError, Splitter},
    provider::{Line, LineOutcome, anthropic, openai},
    store::{
        pages::FrameRow,
        record::{self, Frame as Packed, ManifestPage, StoredAnswer, Unanswered},
    },
};

/// A target's name and its body.
pub(crate) type Target = (&'static str, fn(&[u8]));

pub(crate) const TARGETS: &[Target] = &[
    ("body_json", body_json),
    ("body_ndjson", body_ndjson),
    ("json", any_json),
    ("prompt", prompt),
    ("line_anthropic", line_anthropic),
    ("line_openai", line_openai),
    ("records", records),
];

// Bodies: whole or in pieces, the same comes out.

fn body_json(data: &[u8]) {
    body(data, Splitter::json);
}

fn body_ndjson(data: &[u8]) {
    body(data, Splitter::ndjson);
}

/// The first byte says where the body is cut.
fn body(data: &[u8], splitter: fn() -> Splitter) {
    let Some((step, body)) = data.split_first() else { return };
    let whole = split(body, body.len().max(1), splitter());
    let pieces = split(body, usize::from(*step).max(1), splitter());
    assert_eq!(whole, pieces, "cut every {step} bytes");
    let fields = whole.0.iter().filter_map(|frame| match frame {
        Frame::Field(field) => Some(field.clone()),
        Frame::Prompt(_) => None,
    });
    let (options, _) = Options::parse(&fields.collect::<Vec<FieldText>>(), CacheMode::Use);
    for frame in whole.0.iter().take(50) {
        if let Frame::Prompt(text) = frame {
            read_prompt(text, &options);
        }
    }
}

fn split(body: &[u8], step: usize, mut splitter: Splitter) -> (Vec<Frame>, Option<FrameError>) {
    let mut frames = Vec::new();
    for piece in body.chunks(step) {
        if let Err(error) = splitter.push(piece, &mut frames) {
            return (frames, Some(error));
        }
    }
    let end = splitter.finish(&mut frames).err();
    (frames, end)
}

// JSON values and prompts: what is hashed is what is sent.

fn any_json(data: &[u8]) {
    let ours = json::parse(data);
    if let Ok(value) = &ours {
        let theirs: serde_json::Value = serde_json::from_slice(data).expect("what we read is JSON");
        let text = |value| {
            let mut out = Vec::new();
            canonical::write(value, &mut out).map(|()| out)
        };
        let again = json::parse(&serde_json::to_vec(value).expect("a value")).expect("what we write we read");
        // The exponent of a number is written as it came by us alone, so not the values are compared.
        assert_eq!(text(value).ok(), text(&theirs).ok());
        assert_eq!(text(value).ok(), text(&again).ok());
    }
    if let Err(fault) = ours {
        assert!(!fault.message().is_empty());
        let _ = fault.pointer();
    }
    let _ = json::members(data);
}

fn routes() -> Routes {
    let route = |account: &str, kind, models: &[&str]| Route {
        account: account.to_owned(),
        who: account.to_owned(),
        kind,
        models: models.iter().map(|model| Glob::parse(model).expect("a glob of ours")).collect(),
    };
    Routes::new(vec![
        route("anthropic", ProviderKind::AnthropicBatch, DEFAULT_ANTHROPIC_MODELS),
        route("openai", ProviderKind::OpenAiBatch, DEFAULT_OPENAI_MODELS),
    ])
}

fn prompt(data: &[u8]) {
    let text = PromptText { position: 0, line: Some(2), bytes: data.to_vec().into() };
    read_prompt(&text, &Options::default());
    let _ = text.custom_id();
}

fn read_prompt(text: &PromptText, options: &Options) {
    match Prompt::parse(text, options, &routes()) {
        Ok(prompt) => {
            let key = |prompt: &Prompt| {
                Question::new(prompt, options.salt.as_ref()).expect("the parser saw its numbers").sample(0)
            };
            let body = prompt.body_text();
            assert!(!body.contains(&b'\n'), "a line of a file");
            let sent = Prompt { body: json::parse(&body).expect("what is sent is JSON"), ..prompt.clone() };
            assert_eq!(key(&prompt), key(&sent), "what is hashed is what is sent");
        }
        Err(problems) => assert!(problems.iter().all(|problem| !problem.message.is_empty())),
    }
}

// Result lines: whatever comes, an answer has its line's own body.

fn line_anthropic(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        line(text, anthropic::wire::read_line(text));
    }
}

/// The first byte says which endpoint.
fn line_openai(data: &[u8]) {
    const ENDPOINTS: [Endpoint; 5] = [
        Endpoint::ChatCompletions,
        Endpoint::Responses,
        Endpoint::Embeddings,
        Endpoint::Completions,
        Endpoint::Moderations,
    ];
    let Some((which, rest)) = data.split_first() else { return };
    if let Ok(text) = std::str::from_utf8(rest) {
        line(text, openai::wire::read_line(ENDPOINTS[usize::from(*which) % 5], text));
    }
}

fn line(text: &str, read: Option<Line>) {
    let Some(Line { custom_id, outcome }) = read else { return };
    // We are more tolerant than serde_json: a control character in a name spoils only that name.
    if let Ok(whole) = serde_json::from_str::<serde_json::Value>(text) {
        assert!(whole["custom_id"].as_str().is_some_and(|told| told == custom_id), "the line's own id");
    }
    if let LineOutcome::Final(Outcome::Answered(answer)) = outcome {
        let body = std::str::from_utf8(&answer.body).expect("a piece of the line");
        assert!(text.contains(body), "the body is kept as the bytes that came");
    }
}

// What Redis gives back: read or refused, never a panic; and what is read is written the same again.

fn records(data: &[u8]) {
    let key = CacheKey::from_bytes([7; 32]);
    if let Ok(found) = Packed::unpack(data) {
        let mut again = Packed::default();
        for (head, body) in &found {
            again.push(head, body);
            let _ = record::read_known(head, body.clone());
            let _ = Unanswered::from_head(head);
        }
        assert_eq!(Packed::unpack(&again.pack()).expect("ours"), found);
    }
    if let Ok(items) = record::unpack_items(data) {
        assert_eq!(record::unpack_items(&record::pack_items(&items)).expect("ours"), items);
    }
    if let Ok(page) = record::unpack_json::<ManifestPage>(data, "manifest") {
        let again = record::unpack_json::<ManifestPage>(&record::pack_json(&page), "manifest").expect("ours");
        assert_eq!(again, page);
    }
    if let Ok(Some(answer)) = record::unpack_cached(&key, data) {
        let again = record::unpack_cached(&key, &record::pack_cached(&key, &answer)).expect("ours");
        assert_eq!(again, Some(answer));
    }
    if let Ok(answer) = StoredAnswer::from_raw(data.to_vec().into()) {
        assert_eq!(StoredAnswer::from_raw(answer.to_raw()).expect("ours"), answer);
    }
    // Unpacked bodies are small in the corpus: what a mutation reaches directly is the inner form.
    let _ = record::read_known(data.get(..33).unwrap_or(data), data.get(33..).unwrap_or_default().to_vec().into());
    let _ = Unanswered::from_head(data);
    if let Ok(text) = std::str::from_utf8(data) {
        if let Ok(row) = FrameRow::from_stored(text) {
            assert_eq!(FrameRow::from_stored(&row.to_stored()).expect("ours"), row);
        }
        if let Some(chunk) = ChunkId::parse(text) {
            assert_eq!(ChunkId::parse(&chunk.to_string()), Some(chunk));
        }
        if let Some(batch) = BatchId::parse(text) {
            assert_eq!(batch.to_string(), text);
        }
    }
}
