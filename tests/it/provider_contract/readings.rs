//! What is read in an answer, and what is kept of it.

use super::desk::{Desk, answer, failure};
use batchgate::domain::outcome::{FailureCode, Finish};

pub(super) async fn readings_follow_the_markers(desk: Desk) {
    let order = desk.order(
        "marks",
        &["[[refuse]]", "[[tool]]", "[[empty]]", "[[nochoices]]", "[[truncate]]", "[[cached]] twice", "[[len:5000]]"],
    );
    let outcomes: Vec<_> = desk.outcomes(&order).await.into_values().collect();
    let reading = |index: usize| &answer(&outcomes[index]).reading;
    let read = |index: usize| (reading(index).completion.as_deref().map(str::len), reading(index).finish);
    assert_eq!(read(0), (None, Some(Finish::Refusal)));
    assert_eq!(read(1), (None, Some(Finish::ToolUse)));
    assert_eq!(read(2), (Some(0), Some(Finish::Stop)));
    if desk.is_openai() {
        let failure = failure(&outcomes[3]);
        assert_eq!((failure.code, failure.retryable), (FailureCode::EmptyAnswer, false));
    } else {
        assert_eq!(read(3), (Some(0), Some(Finish::Stop)), "a message without blocks is an empty text");
    }
    assert_eq!(reading(4).finish, Some(Finish::Length));
    assert_eq!(reading(4).stop_reason.as_deref(), Some(if desk.is_openai() { "length" } else { "max_tokens" }));
    let usage = reading(5).usage.expect("usage");
    let oracle = desk.sim.oracle(desk.name(), &desk.body("[[cached]] twice")).await;
    assert_eq!(
        usage.input_tokens,
        oracle["input_tokens"].as_u64().expect("a count"),
        "cached and written tokens are input"
    );
    assert_eq!(usage.output_tokens, oracle["output_tokens"].as_u64().expect("a count"));
    assert!(usage.cached_input_tokens > 0 && usage.cached_input_tokens < usage.input_tokens);
    assert_eq!(read(6), (Some(5000), Some(Finish::Stop)));
    let model = reading(6).model.as_deref().expect("a model");
    assert!(
        model.len() > order.parcel.model.len() && model.starts_with(&order.parcel.model),
        "the dated name: {model}"
    );
}

/// Strict parsers refuse such a line; here only our own text gets a replacement character.
pub(super) async fn a_lone_surrogate_is_still_a_success(desk: Desk) {
    let order = desk.order("lone", &["a [[surrogate]]", "b"]);
    let outcomes: Vec<_> = desk.outcomes(&order).await.into_values().collect();
    let answer = answer(&outcomes[0]);
    let text = answer.reading.completion.as_deref().expect("a text");
    assert!(text.ends_with("a [[surrogate]]\u{FFFD}"), "{text}");
    assert!(answer.body.windows(6).any(|bytes| bytes.eq_ignore_ascii_case(b"\\ud83d")), "the body is as it came");
}

pub(super) async fn numbers_and_spaces_of_a_body_are_the_providers(desk: Desk) {
    let order = desk.order("exact", &["a"]);
    let outcomes = desk.outcomes(&order).await;
    let answer = answer(outcomes.values().next().expect("one"));
    assert!(!answer.body.contains(&b'\n'));
    let body: serde_json::Value = serde_json::from_slice(&answer.body).expect("one JSON value");
    let ledger = desk.sim.ledger().await;
    assert_eq!(body["usage"]["sim_call"], ledger["billed"][0]["call"], "it is the body that was billed");
    assert_eq!(answer.request_id.is_some(), desk.is_openai());
}
