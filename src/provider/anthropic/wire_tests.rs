//! On the contract's own examples, lifted into `tests/fixtures/provider`.

use super::*;
use crate::{
    domain::outcome::{FailureCode, Usage},
    provider::parcel::tests::{parcel, written},
};

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../../../tests/fixtures/provider/", $name, ".json")).trim_end()
    };
}

fn batch(text: &str) -> Batch {
    Batch::read(text.as_bytes()).unwrap()
}

#[tokio::test]
async fn limits_and_body_agree_to_the_byte() {
    let limits = limits();
    for bodies in [&["{}"][..], &[r#"{"model":"é漢","n":1e400}"#, "{}", r#"{"a":1}"#]] {
        let bytes = limits.fixed_bytes + bodies.iter().map(|body| limits.weight(body.len())).sum::<u64>();
        let body = written(&parcel(bodies, bytes), frame()).await.unwrap();
        assert_eq!(body.len() as u64, bytes);
        assert!(body.starts_with(&format!(r#"{{"requests":[{{"custom_id":"{:0>60}","params":{{"#, 0)), "{body}");
        let parsed: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(parsed["requests"].as_array().unwrap().len(), bodies.len());
        let contract: serde_json::Value = serde_json::from_str(fixture!("anthropic_create")).unwrap();
        let names = |create: &serde_json::Value| {
            let request = create["requests"][0].as_object().unwrap();
            (create.as_object().unwrap().len(), request.keys().cloned().collect::<Vec<_>>())
        };
        assert_eq!(names(&parsed), names(&contract));
    }
}

#[test]
fn a_create_says_version_and_betas_only_if_told() {
    assert_eq!(headers(&ApiHeaders::default()), []);
    let given = ApiHeaders { version: Some("2026-10-21".into()), betas: vec!["a".into(), "b".into()] };
    assert_eq!(headers(&given), [("anthropic-version", "2026-10-21".to_owned()), ("anthropic-beta", "a,b".to_owned())]);
}

#[test]
fn every_state_of_the_contract_is_one_of_ours() {
    assert_eq!(batch(fixture!("anthropic_batch_in_progress")).status(), Some(RemoteStatus::Running { reported: 0 }));
    assert_eq!(batch(fixture!("anthropic_batch_canceling")).status(), Some(RemoteStatus::Running { reported: 0 }));
    let remote = RemoteId("msgbatch_013Zva2CMHLNnXjNJJKqJ2EF".into());
    let sources = vec!["/v1/messages/batches/msgbatch_013Zva2CMHLNnXjNJJKqJ2EF/results".to_owned()];
    assert_eq!(batch(fixture!("anthropic_batch_ended")).status(), Some(RemoteStatus::Ended(Ended { remote, sources })));
    let odd = batch(r#"{"id":"b","processing_status":"paused","request_counts":null}"#);
    assert_eq!((odd.status(), odd.word.as_str()), (None, "paused"));
    assert!(Batch::read(b"{}").is_none() && Batch::read(b"<html>").is_none());
}

#[test]
fn the_results_are_read_where_the_batch_is_whatever_its_url_says() {
    let elsewhere = batch(r#"{"id":"a/../b","processing_status":"ended","results_url":"https://evil.example/x"}"#);
    let Some(RemoteStatus::Ended(ended)) = elsewhere.status() else { panic!("ended") };
    assert_eq!(ended.sources, ["/v1/messages/batches/a%2F..%2Fb/results"]);
}

#[test]
fn candidates_are_newer_and_of_our_size() {
    let doubt = |newest: &str, at: &str| Doubt {
        chunk: "chk_1".into(),
        deployment: "test".into(),
        attempt: 1,
        prompts: 100,
        input: None,
        credential: None,
        identity: None,
        not_before: None,
        newest_before: Some(Newest { remote: RemoteId(newest.into()), created_at: Some(at.into()) }),
    };
    let running = batch(fixture!("anthropic_batch_in_progress"));
    assert!(running.may_be(&doubt("x", "2026-11-30T09:59:59Z")).is_some());
    assert!(running.may_be(&Doubt { prompts: 99, ..doubt("x", "") }).is_none());
    assert!(!running.was_before(&doubt("x", "2026-11-30T10:00:00.100434Z")));
    assert!(running.was_before(&doubt("x", "2026-11-30T10:00:00.100436Z")), "older than one that is gone");
    assert!(running.was_before(&doubt("msgbatch_013Zva2CMHLNnXjNJJKqJ2EF", "")));
    let unknown = |not_before: &str| Doubt {
        newest_before: None,
        not_before: not_before.parse::<Timestamp>().ok().and_then(|at| u64::try_from(at.as_millisecond()).ok()),
        ..doubt("", "")
    };
    assert!(!running.was_before(&unknown("2026-11-30T11:00:00Z")), "clocks may differ by an hour");
    assert!(running.was_before(&unknown("2026-11-30T11:00:01Z")));
    assert_eq!(batch(fixture!("anthropic_batch_ended")).total, 100);
}

#[test]
fn a_page_is_read_batch_by_batch() {
    let page =
        format!(r#"{{"data":[{},{{"odd":1}}],"has_more":false,"first_id":null}}"#, fixture!("anthropic_batch_ended"));
    let (batches, more) = read_page(page.as_bytes()).unwrap();
    assert_eq!((batches.len(), more), (1, false));
    assert!(read_page(br#"{"data":[]}"#).unwrap().1 && read_page(b"{}").is_none());
}

#[test]
fn a_success_keeps_the_bytes_of_its_message() {
    let text = fixture!("anthropic_line_succeeded");
    let line = read_line(text).unwrap();
    assert_eq!(line.custom_id, "r-000001");
    let LineOutcome::Final(Outcome::Answered(answer)) = line.outcome else { panic!("{:?}", line.outcome) };
    assert!(text.contains(std::str::from_utf8(&answer.body).unwrap()));
    assert!(
        answer.body.starts_with(br#"{"id": "msg_014VwiXbi91y3JMjcpyGBHX5""#)
            && answer.body.ends_with(b"\"speed\": null}}")
    );
    assert_eq!(answer.reading.completion.as_deref(), Some("Hello."));
    assert_eq!(answer.reading.usage, Some(Usage { input_tokens: 11, cached_input_tokens: 0, output_tokens: 36 }));
}

#[test]
fn the_other_three_results_and_none_of_them() {
    let failed = |line: &str| match read_line(line).unwrap().outcome {
        LineOutcome::Final(Outcome::Failed(failure)) => (failure.code, failure.retryable, failure.provider_code),
        other => panic!("{other:?}"),
    };
    let some = |word: &str| Some(word.to_owned());
    assert_eq!(
        failed(fixture!("anthropic_line_errored")),
        (FailureCode::InvalidRequest, false, some("invalid_request_error"))
    );
    assert_eq!(read_line(fixture!("anthropic_line_canceled")).unwrap().outcome, LineOutcome::Canceled);
    assert_eq!(read_line(fixture!("anthropic_line_expired")).unwrap().outcome, LineOutcome::Expired);
    let empty = r#"{"custom_id":"c","result":{"type":"succeeded","message":null}}"#;
    assert_eq!(failed(empty), (FailureCode::EmptyAnswer, false, None));
    assert_eq!(
        failed(r#"{"custom_id":"c","result":{"type":"blocked"}}"#),
        (FailureCode::ServerError, false, some("blocked"))
    );
    assert_eq!(failed(r#"{"custom_id":"c","result":null}"#), (FailureCode::ServerError, false, None));
    assert!(
        read_line(r#"{"custom_id": "cut off"#).is_none() && read_line(r#"{"result":{"type":"expired"}}"#).is_none()
    );
}

#[test]
fn the_inner_error_type_decides() {
    let cases = [
        ("invalid_request_error", FailureCode::InvalidRequest, false),
        ("authentication_error", FailureCode::ServerError, true),
        ("billing_error", FailureCode::ServerError, true),
        ("permission_error", FailureCode::ServerError, true),
        ("not_found_error", FailureCode::NotFound, false),
        ("request_too_large", FailureCode::TooLarge, false),
        ("rate_limit_error", FailureCode::RateLimited, true),
        ("api_error", FailureCode::ServerError, true),
        ("timeout_error", FailureCode::Timeout, true),
        ("overloaded_error", FailureCode::Overloaded, true),
        ("conflict_error", FailureCode::ServerError, true),
        ("new_error", FailureCode::ServerError, true),
    ];
    for (kind, code, retryable) in cases {
        let line = format!(
            r#"{{"custom_id":"c","result":{{"type":"errored","error":{{"type":"error","error":{{"type":"{kind}","message":"m"}}}}}}}}"#
        );
        let LineOutcome::Final(Outcome::Failed(failure)) = read_line(&line).unwrap().outcome else { panic!("{kind}") };
        assert_eq!((failure.code, failure.retryable, failure.message.as_str()), (code, retryable, "m"), "{kind}");
    }
}
