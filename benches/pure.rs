//! The pure parts of the accept and harvest paths, each against its floor in the same run. `cargo bench`.
//!
//! Prints, for each part, microseconds per prompt and the ratio to the floor: minimum, median, maximum of the runs.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use batchgate::{
    domain::{
        batch::Options,
        chunk::{By, Item, Lane, Ledger, Place, Verdict, WireIds},
        id::WireTag,
        key::{CacheKey, Question},
        limits::BatchLimits,
        outcome::Usage,
        prompt::{ApiHeaders, Endpoint, Prompt, PromptText},
        route::Routes,
    },
    pipeline::{
        frames::{Frame, Splitter},
        plan::{Planner, Question as PlanQuestion},
    },
    store::record,
};
use sha2::{Digest, Sha256};
use std::{hint::black_box, time::Instant};

const PROMPTS: usize = 20_000;
const RUNS: usize = 7;

fn main() {
    let body = body();
    let texts = prompts(&body);
    let (options, _) = Options::parse(&[], batchgate::domain::batch::CacheMode::Use);
    let routes = Routes::default();
    let parse = |text: &PromptText| Prompt::parse(text, &options, &routes).expect("a good prompt");
    let parsed: Vec<Prompt> = texts.iter().map(parse).collect();
    let keys: Vec<CacheKey> = parsed.iter().map(|prompt| key(prompt, 0)).collect();
    println!("{PROMPTS} prompts of about {} bytes, {RUNS} runs: minimum / median / maximum", body.len() / PROMPTS);

    let hash = measure(|| {
        texts.iter().for_each(|text| {
            black_box(Sha256::digest(&text.bytes));
        });
    });
    let value = measure(|| texts.iter().for_each(|text| drop(black_box(json(&text.bytes)))));
    report("floor: SHA-256 of the bytes", &hash, &hash);
    report("floor: serde_json::Value", &value, &value);
    report("split an NDJSON body (floor: SHA-256)", &measure(|| drop(black_box(prompts(&body)))), &hash);
    let read = measure(|| texts.iter().for_each(|text| drop(black_box(parse(text)))));
    report("read and check a prompt (floor: Value)", &read, &value);
    let keyed = measure(|| {
        parsed.iter().for_each(|prompt| {
            black_box(key(prompt, 0));
        });
    });
    report("canonical form and key (floor: SHA-256)", &keyed, &hash);
    let copied = measure(|| drop(black_box(keys.clone())));
    report("plan (floor: copy the keys)", &measure(|| plan(&keys)), &copied);
    report("ledger (floor: copy the keys)", &measure(|| ledger(&keys)), &copied);
    let zstd = measure(|| {
        for page in texts.chunks(500) {
            let raw: Vec<u8> = page.iter().flat_map(|text| text.bytes.to_vec()).collect();
            black_box(zstd::bulk::compress(&raw, 3).expect("memory"));
        }
    });
    report("page frames of 500 (floor: zstd -3)", &measure(|| frames(&texts)), &zstd);
}

fn body() -> Vec<u8> {
    let line = |n: usize| {
        let text = format!("Question {n}: {}", "what follows from this, and why does it matter to us? ".repeat(30));
        serde_json::json!({"custom_id": format!("c{n}"), "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "gpt-5-mini", "messages": [{"role": "user", "content": text}], "temperature": 0.7}})
    };
    (0..PROMPTS).flat_map(|n| format!("{}\n", line(n)).into_bytes()).collect()
}

fn prompts(body: &[u8]) -> Vec<PromptText> {
    let (mut splitter, mut frames) = (Splitter::ndjson(), Vec::new());
    for piece in body.chunks(64 << 10) {
        splitter.push(piece, &mut frames).expect("a good body");
    }
    splitter.finish(&mut frames).expect("a good body");
    let prompt = |frame| match frame {
        Frame::Prompt(text) => Some(text),
        Frame::Field(_) => None,
    };
    frames.into_iter().filter_map(prompt).collect()
}

fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).expect("JSON")
}

fn key(prompt: &Prompt, sample: u64) -> CacheKey {
    Question::new(prompt, None).expect("plain numbers").sample(sample)
}

fn plan(keys: &[CacheKey]) {
    let model = Some("gpt-5-mini".to_owned());
    let lane =
        Lane { account: "openai".into(), endpoint: Endpoint::ChatCompletions, model, headers: ApiHeaders::default() };
    let limits = BatchLimits {
        max_prompts: 50_000,
        max_inputs: None,
        max_bytes: 64 << 20,
        fixed_bytes: 0,
        line_bytes: 150,
        mixes_models: false,
    };
    let mut planner = Planner::new(5_000, false);
    for key in keys {
        let place = Place { page: 0, results: 1 };
        planner.push(&PlanQuestion { key: *key, lane: &lane, by: By::Us, limits, wire_bytes: 2_000, inputs: 1, place });
        black_box(planner.take_full());
    }
    black_box(planner.finish());
}

fn ledger(keys: &[CacheKey]) {
    let ids = WireIds::new(WireTag::new("bench", "default", &[1; 9]), true);
    let place = Place { page: 0, results: 1 };
    let item = |key: &CacheKey| Item { key: *key, places: vec![place], attempts: 0, missed: false };
    let items: Vec<Item> = keys.iter().map(item).collect();
    let mut ledger = Ledger::open(ids.clone(), &items);
    for key in keys.iter().rev() {
        ledger.record(&ids.write(key), Verdict::Answered(Usage::default()));
    }
    black_box(ledger.close());
}

fn frames(texts: &[PromptText]) {
    for page in texts.chunks(500) {
        let mut frame = record::Frame::default();
        for text in page {
            frame.push(b"", &text.bytes);
        }
        black_box(frame.pack());
    }
}

/// Seconds of each run, sorted.
fn measure(mut work: impl FnMut()) -> Vec<f64> {
    work(); // warm
    let run = |_| {
        let began = Instant::now();
        work();
        began.elapsed().as_secs_f64()
    };
    let mut seconds: Vec<f64> = (0..RUNS).map(run).collect();
    seconds.sort_by(f64::total_cmp);
    seconds
}

fn report(what: &str, seconds: &[f64], floor: &[f64]) {
    let each = |seconds: f64| seconds * 1e6 / PROMPTS as f64;
    let (first, middle, last) = (seconds[0], seconds[RUNS / 2], seconds[RUNS - 1]);
    println!(
        "{what:<44} {:>7.2} / {:>7.2} / {:>7.2} us   {:>6.2} x",
        each(first),
        each(middle),
        each(last),
        middle / floor[RUNS / 2]
    );
}
