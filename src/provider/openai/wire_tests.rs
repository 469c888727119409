//! On the contract's own examples, lifted into `tests/fixtures/provider`.

use super::*;
use crate::{
    domain::outcome::{FailureCode, Finish, Reading, Usage},
    provider::{
        InputFile,
        parcel::tests::{parcel, written},
    },
};

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../../../tests/fixtures/provider/", $name, ".json")).trim_end()
    };
}

fn remote() -> RemoteId {
    RemoteId("batch_abc".to_owned())
}

fn status(batch: &str) -> RemoteStatus {
    read_status(&remote(), batch.as_bytes()).unwrap().unwrap()
}

fn ended(sources: &[&str]) -> RemoteStatus {
    RemoteStatus::Ended(Ended { remote: remote(), sources: sources.iter().map(|file| (*file).to_owned()).collect() })
}

fn names(object: &str) -> Vec<String> {
    let members: serde_json::Map<String, serde_json::Value> = serde_json::from_str(object).unwrap();
    members.keys().cloned().collect()
}

#[tokio::test]
async fn limits_and_lines_agree_to_the_byte() {
    for endpoint in Endpoint::ALL {
        let limits = limits(endpoint);
        let bodies = [r#"{"model":"m"}"#, r#"{"model":"é漢","n":1e400}"#, "{}"];
        let bytes = limits.fixed_bytes + bodies.iter().map(|body| limits.weight(body.len())).sum::<u64>();
        let parcel = Parcel { endpoint, ..parcel(&bodies, bytes) };
        let file = written(&parcel, frame()).await.unwrap();
        assert_eq!(file.len() as u64, bytes);
        let first = format!(
            r#"{{"custom_id":"{:0>60}","method":"POST","url":"{}","body":{{"model":"m"}}}}"#,
            0,
            endpoint.path()
        );
        assert_eq!(file.lines().next(), Some(first.as_str()));
        assert!(file.ends_with("\"body\":{}}\n"));
        for line in file.lines() {
            assert_eq!(names(line), names(fixture!("openai_input_line")));
        }
    }
}

#[test]
fn a_create_names_file_endpoint_and_our_label() {
    let body: serde_json::Value = serde_json::from_slice(&create_body(&parcel(&["{}"], 1), "file-1")).unwrap();
    let label = json!({"batchgate_deployment": "test", "batchgate_chunk": "chk_1", "batchgate_attempt": "1"});
    let expect = json!({"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h", "metadata": label});
    assert_eq!(body, expect);
    let contract = names(fixture!("openai_create"));
    assert!(names(&body.to_string()).iter().all(|name| contract.contains(name)));
}

#[test]
fn every_state_of_the_contract_is_one_of_our_three() {
    assert_eq!(status(fixture!("openai_batch_validating")), RemoteStatus::Running { reported: 0 });
    assert_eq!(status(fixture!("openai_batch_completed")), ended(&["file-out123", "file-err123"]));
    assert_eq!(status(fixture!("openai_batch_all_failed")), ended(&["file-err124"]));
    assert_eq!(status(fixture!("openai_batch_expired")), ended(&["file-out126", "file-err126"]));
    assert_eq!(status(fixture!("openai_batch_cancelled")), ended(&["file-out127", "file-err127"]));
    for word in ["validating", "in_progress", "finalizing", "cancelling", "In_Progress"] {
        let batch = format!(r#"{{"status":"{word}","request_counts":{{"total":9,"completed":3,"failed":2}}}}"#);
        assert_eq!(status(&batch), RemoteStatus::Running { reported: 5 });
    }
    assert_eq!(status(r#"{"status":"Completed","output_file_id":"","error_file_id":""}"#), ended(&[]), "Azure");
    assert_eq!(status(r#"{"status":"completed","request_counts":null}"#), ended(&[]));
}

#[test]
fn an_unknown_word_is_still_running() {
    let unknown =
        read_status(&remote(), br#"{"status":"paused","request_counts":{"completed":1}}"#).unwrap().unwrap_err();
    assert_eq!(unknown, Unknown { word: "paused".to_owned(), running: RemoteStatus::Running { reported: 1 } });
    assert!(read_status(&remote(), b"<html>").is_none() && read_status(&remote(), b"{}").is_none());
}

fn refused(errors: &str) -> Refusal {
    match status(&format!(r#"{{"status":"failed","errors":{errors}}}"#)) {
        RemoteStatus::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failed_batch_says_what_to_do_next() {
    let RemoteStatus::Refused(Refusal::Lines(lines)) = status(fixture!("openai_batch_failed_lines")) else {
        panic!("names lines")
    };
    let told: Vec<_> =
        lines.iter().map(|fault| (fault.line, fault.code.as_deref().unwrap(), fault.message.as_str())).collect();
    assert_eq!(told[0], (4, "invalid_json_line", "This line is not parseable as valid JSON."));
    assert_eq!(told[1], (9, "missing_required_parameter", "Missing required parameter: 'custom_id'."));

    let one = |entry: &str| refused(&format!(r#"{{"object":"list","data":[{entry}]}}"#));
    let limit = one(
        r#"{"code":"token_limit_exceeded","message":"Enqueued token limit reached. Limit: 90,000 enqueued tokens.","param":null,"line":null}"#,
    );
    let pressure = Pressure::Tokens(TokenLimit { stated: Some(90_000) });
    let detail = "Enqueued token limit reached. Limit: 90,000 enqueued tokens.".to_owned();
    assert_eq!(limit, Refusal::BackPressure { pressure, detail });
    for (code, pressure) in [
        ("insufficient_quota", Pressure::Spent),
        ("rate_limit_exceeded", Pressure::Requests),
        ("server_error", Pressure::Trouble),
    ] {
        let refusal = one(&format!(r#"{{"code":"{code}","message":"m","param":null,"line":null}}"#));
        assert_eq!(refusal, Refusal::BackPressure { pressure, detail: "m".to_owned() });
    }
    let lost = one(r#"{"code":"invalid_request","message":"Cannot find file f.","param":"file_id","line":null}"#);
    assert_eq!(lost, Refusal::InputLost { detail: "Cannot find file f.".to_owned() });
    let whole = one(r#"{"code":"too_many_tasks","message":"m","param":null,"line":null}"#);
    assert_eq!(whole, Refusal::Whole { code: Some("too_many_tasks".to_owned()), detail: "m".to_owned() });
    for nothing in ["null", r#"{"data":[]}"#, r#"{"data":null}"#, "[]"] {
        assert_eq!(refused(nothing), Refusal::Whole { code: None, detail: "failed without a reason".to_owned() });
    }
}

fn doubt() -> Doubt {
    Doubt {
        chunk: "chk_1".into(),
        deployment: "test".into(),
        attempt: 2,
        prompts: 3,
        input: Some(InputFile("file-1".into())),
        credential: None,
        identity: None,
        not_before: None,
        newest_before: None,
    }
}

#[test]
fn a_lost_batch_is_known_by_its_label_or_else_by_its_file() {
    let listed =
        |batch: &str| !read_page(&doubt(), format!(r#"{{"data":[{batch}]}}"#).as_bytes()).unwrap().ours.is_empty();
    let label = |chunk: &str, deployment: &str, attempt: &str| {
        format!(
            r#"{{"id":"b","input_file_id":"file-1","metadata":{{"batchgate_chunk":"{chunk}","batchgate_deployment":"{deployment}","batchgate_attempt":"{attempt}"}}}}"#
        )
    };
    assert!(listed(&label("chk_1", "test", "2")));
    assert!(listed(&label("chk_1", "test", "3")), "an attempt that nobody remembers");
    assert!(!listed(&label("chk_1", "test", "1")), "an earlier attempt used the same file");
    assert!(!listed(&label("chk_1", "other", "2")) && !listed(&label("chk_2", "test", "2")));
    for metadata in ["null", "{}", r#"{"else":"x"}"#] {
        assert!(listed(&format!(r#"{{"id":"b","input_file_id":"file-1","metadata":{metadata}}}"#)));
        assert!(!listed(&format!(r#"{{"id":"b","input_file_id":"file-2","metadata":{metadata}}}"#)));
    }
}

#[test]
fn pages_end_only_where_the_provider_says_so() {
    let page = |text: &str| read_page(&doubt(), text.as_bytes());
    assert!(page(r#"{"data":[]}"#).unwrap().more);
    assert!(!page(r#"{"data":[],"has_more":false}"#).unwrap().more);
    assert!(page("{}").is_none() && page("<html>").is_none());
    let two = page(r#"{"data":[{"id":"b","created_at":20},{"id":"a","created_at":10}],"has_more":true}"#).unwrap();
    assert_eq!((two.ids, two.newest, two.oldest), (vec!["b".to_owned(), "a".to_owned()], Some(20), Some(10)));
}

/// A line of a batch of chat completions.
fn read(line: &str) -> Option<Line> {
    read_line(Endpoint::ChatCompletions, line)
}

#[test]
fn a_success_keeps_the_bytes_of_its_body() {
    let text = fixture!("openai_line_success");
    let line = read(text).unwrap();
    assert_eq!(line.custom_id, "r-000001");
    let LineOutcome::Final(Outcome::Answered(answer)) = line.outcome else { panic!("{:?}", line.outcome) };
    assert!(text.contains(std::str::from_utf8(&answer.body).unwrap()));
    assert!(
        answer.body.starts_with(br#"{ "id": "chatcmpl-B9x", "object""#)
            && answer.body.ends_with(b"\"system_fingerprint\": null}")
    );
    assert_eq!(answer.request_id.as_deref(), Some("req_c187b3"));
    let reading = answer.reading;
    assert_eq!(
        (reading.model.as_deref(), reading.completion.as_deref()),
        (Some("gpt-5-mini-2025-08-07"), Some("Hello."))
    );
    assert_eq!((reading.finish, reading.stop_reason.as_deref()), (Some(Finish::Stop), Some("stop")));
    assert_eq!(reading.usage, Some(Usage { input_tokens: 24, cached_input_tokens: 0, output_tokens: 15 }));
}

#[test]
fn every_endpoints_answer_is_read() {
    let reading = |endpoint, line: &str| match read_line(endpoint, line).unwrap().outcome {
        LineOutcome::Final(Outcome::Answered(answer)) => answer.reading,
        other => panic!("{other:?}"),
    };
    let usage = |input_tokens, output_tokens| Some(Usage { input_tokens, cached_input_tokens: 0, output_tokens });
    let some = |word: &str| Some(word.to_owned());
    assert_eq!(
        reading(Endpoint::Responses, fixture!("openai_line_responses")),
        Reading {
            model: some("gpt-5-mini-2025-08-07"),
            completion: some("Hello."),
            finish: Some(Finish::Stop),
            stop_reason: some("completed"),
            usage: usage(24, 15),
        }
    );
    assert_eq!(
        reading(Endpoint::Completions, fixture!("openai_line_completions")),
        Reading {
            model: some("gpt-3.5-turbo-instruct"),
            completion: some(" world"),
            finish: Some(Finish::Stop),
            stop_reason: some("stop"),
            usage: usage(2, 1),
        }
    );
    assert_eq!(
        reading(Endpoint::Embeddings, fixture!("openai_line_embeddings")),
        Reading { model: some("text-embedding-3-small"), usage: usage(8, 0), ..Reading::default() }
    );
    assert_eq!(
        reading(Endpoint::Moderations, fixture!("openai_line_moderations")),
        Reading { model: some("omni-moderation-latest"), ..Reading::default() }
    );
    for endpoint in Endpoint::ALL {
        assert_eq!(
            read_line(endpoint, fixture!("openai_line_expired")).unwrap().outcome,
            LineOutcome::Expired,
            "{endpoint:?}"
        );
    }
}

#[test]
fn only_embeddings_count_inputs() {
    for endpoint in Endpoint::ALL {
        let expect = (endpoint == Endpoint::Embeddings).then_some(50_000);
        assert_eq!(limits(endpoint).max_inputs, expect, "{endpoint:?}");
    }
}

#[test]
fn numbers_spaces_and_surrogates_of_a_body_stay_as_they_came() {
    let body = r#"{"choices":[{"message":{"content":"a\ud83d"}}],"x": 1e400,"y":9007199254740993.10 }"#;
    let line = format!(r#"{{"response":{{"body":{body},"status_code":200}},"error":null,"custom_id":"c"}}"#);
    let LineOutcome::Final(Outcome::Answered(answer)) = read(&line).unwrap().outcome else { panic!("a success") };
    assert_eq!(answer.body, body.as_bytes());
    assert_eq!(answer.reading.completion.as_deref(), Some("a\u{FFFD}"));
}

fn failed(line: &str) -> (FailureCode, bool, Option<String>) {
    match read(line).unwrap().outcome {
        LineOutcome::Final(Outcome::Failed(failure)) => (failure.code, failure.retryable, failure.provider_code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn failures_are_read_wherever_they_stand() {
    let some = |word: &str| Some(word.to_owned());
    assert_eq!(
        failed(fixture!("openai_line_rejected")),
        (FailureCode::InvalidRequest, false, some("context_length_exceeded"))
    );
    assert_eq!(read(fixture!("openai_line_expired")).unwrap().outcome, LineOutcome::Expired);
    assert_eq!(read(fixture!("openai_line_cancelled")).unwrap().outcome, LineOutcome::Canceled);
    let response = |status: u16, body: &str, error: &str| {
        failed(&format!(r#"{{"custom_id":"c","response":{{"status_code":{status},"body":{body}}},"error":{error}}}"#))
    };
    assert_eq!(response(503, "null", "null"), (FailureCode::Overloaded, true, None));
    assert_eq!(
        response(429, "null", r#"{"code":"rate_limit_exceeded","message":"m"}"#),
        (FailureCode::RateLimited, true, some("rate_limit_exceeded"))
    );
    assert_eq!(
        response(200, r#"{"choices":[1]}"#, r#"{"code":"odd","message":"m"}"#),
        (FailureCode::ServerError, true, some("odd")),
        "an error beats a 200"
    );
    for empty in ["null", "{}", r#"{"choices":[]}"#, "7", r#""text""#] {
        assert_eq!(response(200, empty, "null"), (FailureCode::EmptyAnswer, false, None), "{empty}");
    }
    assert_eq!(failed(r#"{"custom_id":"c","response":null,"error":null}"#), (FailureCode::ServerError, false, None));
    assert_eq!(failed(r#"{"custom_id":"c"}"#), (FailureCode::ServerError, false, None));
}

#[test]
fn a_line_without_a_readable_id_is_broken() {
    for line in [
        r#"{"custom_id": "cut off"#,
        "",
        "[]",
        "{}",
        r#"{"custom_id":null}"#,
        r#"{"custom_id":7}"#,
        r#"{"custom_id":"a","x":NaN}"#,
    ] {
        assert!(read(line).is_none(), "{line}");
    }
}

#[test]
fn an_uploaded_file_has_an_id_and_a_size() {
    let file = fixture!("openai_file").as_bytes();
    assert_eq!((read_id(file).as_deref(), read_size(file)), (Some("file-abc123"), Some(120_000)));
    assert_eq!(read_id(br#"{"id":""}"#), None);
}
