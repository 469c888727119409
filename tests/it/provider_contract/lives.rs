//! The lives a batch can have, from create to harvest.

use super::desk::{Desk, answer, by_id, failure};
use batchgate::{
    domain::outcome::FailureCode,
    provider::{CallError, CreateError, LineOutcome, Pressure, Refusal, RemoteStatus, TokenLimit},
};
use serde_json::json;

pub(super) async fn answers_come_back_to_their_prompts(desk: Desk) {
    let texts: Vec<String> =
        (0..40).map(|number| format!("Say {number}{}", if number == 7 { " [[unicode]]" } else { "" })).collect();
    let order = desk.order("trip", &texts.iter().map(String::as_str).collect::<Vec<_>>());
    let created = desk.create(&order).await.expect("create");
    let identity = if desk.is_openai() { "org-default" } else { "org-default/wrkspc_default" };
    assert_eq!(created.identity.organisation.as_deref(), Some(identity));
    let lines = desk.harvest(&desk.end(&created.remote).await).await.expect("harvest");
    let sent: Vec<&String> = order.bodies.keys().collect();
    assert_ne!(lines.iter().map(|line| &line.custom_id).collect::<Vec<_>>(), sent, "results come in another order");
    let outcomes = by_id(&order, lines);
    assert_eq!(outcomes.len(), 40);
    for (id, outcome) in &outcomes {
        desk.check_answer(&order, id, outcome).await;
    }
    assert_eq!(desk.sim.ledger().await["totals"]["billed"], 40);
}

pub(super) async fn a_large_parcel_is_sent_in_pieces_of_the_planned_size(desk: Desk) {
    let texts: Vec<String> = (0..300).map(|number| format!("Say {number} {}", "é".repeat(number * 8))).collect();
    let order = desk.order("large", &texts.iter().map(String::as_str).collect::<Vec<_>>());
    let outcomes = desk.outcomes(&order).await;
    assert_eq!(outcomes.len(), 300);
    let ledger = desk.sim.ledger().await;
    let route = if desk.is_openai() { "files.create" } else { "batches.create" };
    let sent = ledger["http"].as_array().expect("rows").iter().find(|row| row["route"] == route).expect("it was sent");
    let bytes = sent["request_bytes"].as_u64().expect("a count");
    // A multipart form adds its boundaries and headers.
    let around = if desk.is_openai() { 1..1000 } else { 0..1 };
    assert!(
        around.contains(&(bytes - order.parcel.wire_bytes)),
        "{bytes} bytes were sent, {} planned",
        order.parcel.wire_bytes
    );
}

pub(super) async fn all_may_fail(desk: Desk) {
    desk.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"results": {"fail": "all"}}})).await;
    let order = desk.order("fail", &["a", "b", "c"]);
    let ended = desk.end(&desk.created(&order).await).await;
    assert_eq!(ended.sources.len(), 1, "there is no output file");
    let outcomes = by_id(&order, desk.harvest(&ended).await.expect("harvest"));
    assert_eq!(outcomes.len(), 3);
    for outcome in outcomes.values() {
        let failure = failure(outcome);
        assert_eq!((failure.code, failure.retryable), (FailureCode::InvalidRequest, false));
        assert_eq!(failure.provider_code.as_deref(), Some("invalid_request_error"));
        assert!(!failure.message.is_empty() && !failure.message.contains("no message"), "the provider's own words");
    }
}

pub(super) async fn every_kind_of_failure_has_its_code(desk: Desk) {
    use FailureCode::{InvalidRequest, NotFound, Overloaded, RateLimited, ServerError, Timeout, TooLarge};
    let billing = if desk.is_openai() { RateLimited } else { ServerError };
    let kinds = [
        ("invalid_request", InvalidRequest, false),
        ("context_length", InvalidRequest, false),
        ("authentication", ServerError, true),
        ("billing", billing, true),
        ("permission", ServerError, true),
        ("not_found", NotFound, false),
        ("conflict", ServerError, true),
        ("too_large", TooLarge, false),
        ("rate_limit", RateLimited, true),
        ("server", ServerError, true),
        ("timeout", Timeout, true),
        ("overloaded", Overloaded, true),
    ];
    let texts: Vec<String> = kinds.iter().map(|(kind, ..)| format!("[[error:{kind}]]")).collect();
    let order = desk.order("kinds", &texts.iter().map(String::as_str).collect::<Vec<_>>());
    let outcomes = desk.outcomes(&order).await;
    for ((kind, code, retryable), outcome) in kinds.iter().zip(outcomes.values()) {
        let failure = failure(outcome);
        assert_eq!((failure.code, failure.retryable), (*code, *retryable), "{kind}");
    }
    assert_eq!(desk.sim.ledger().await["totals"]["billed"], 0);
}

pub(super) async fn what_the_window_cut_off_is_expired(desk: Desk) {
    let order = desk.order("window", &["a", "b [[expire]]", "c", "d [[expire]]"]);
    let remote = desk.created(&order).await;
    desk.sim.advance(60.0).await;
    assert!(matches!(desk.status(&remote).await, RemoteStatus::Running { .. }));
    desk.sim.advance(86_500.0).await;
    let outcomes = by_id(&order, desk.harvest(&desk.end(&remote).await).await.expect("harvest"));
    assert_eq!(outcomes.len(), 4);
    for (number, (id, outcome)) in outcomes.iter().enumerate() {
        if number % 2 == 0 {
            desk.check_answer(&order, id, outcome).await;
        } else {
            assert_eq!(*outcome, LineOutcome::Expired);
        }
    }
}

pub(super) async fn what_was_done_before_a_cancel_is_kept(desk: Desk) {
    desk.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"settings": {"in_progress_s": 1000}}})).await;
    let texts: Vec<String> = (0..20).map(|number| format!("Say {number}")).collect();
    let order = desk.order("cancel", &texts.iter().map(String::as_str).collect::<Vec<_>>());
    let remote = desk.created(&order).await;
    desk.sim.advance(500.0).await;
    assert!(matches!(desk.status(&remote).await, RemoteStatus::Running { .. }));
    desk.provider.cancel(&remote).await.expect("cancel");
    desk.provider.cancel(&remote).await.expect("cancel again");
    let outcomes = by_id(&order, desk.harvest(&desk.end(&remote).await).await.expect("harvest"));
    assert_eq!(outcomes.len(), 20);
    let mut kept = 0;
    for (id, outcome) in &outcomes {
        if *outcome != LineOutcome::Canceled {
            desk.check_answer(&order, id, outcome).await;
            kept += 1;
        }
    }
    assert!((5..=15).contains(&kept), "{kept} of 20 were done half way");
    assert_eq!(desk.sim.ledger().await["totals"]["billed"], kept);
}

pub(super) async fn an_ended_batch_can_be_cancelled_in_vain(desk: Desk) {
    desk.sim.settings(json!({"anthropic": {"cancel_ended": "reject"}})).await;
    let order = desk.order("vain", &["a"]);
    let remote = desk.created(&order).await;
    let ended = desk.end(&remote).await;
    desk.provider.cancel(&remote).await.expect("a batch that has ended needs no cancel");
    assert_eq!(desk.end(&remote).await, ended);
    let unknown = batchgate::provider::RemoteId("batch_unknown".to_owned());
    assert!(matches!(desk.provider.cancel(&unknown).await, Err(CallError::NotFound { .. })));
}

pub(super) async fn the_token_limit_is_back_pressure(desk: Desk) {
    if !desk.is_openai() {
        desk.sim.settings(json!({"anthropic": {"max_queued_requests": 2}})).await;
        let refused = desk.create(&desk.order("limit", &["a", "b", "c"])).await;
        assert!(
            matches!(refused, Err(CreateError::NotCreated(CallError::Again { after: Some(_), .. }))),
            "{refused:?}"
        );
        return;
    }
    desk.sim
        .fault(json!({"match": {"route": "batches.create"}, "fault": {"validation_errors": "token_limit_exceeded"}}))
        .await;
    let order = desk.order("limit", &["a", "b"]);
    let status = desk.settled(&desk.created(&order).await).await;
    let RemoteStatus::Refused(Refusal::BackPressure { pressure, detail }) = status else { panic!("{status:?}") };
    assert!(detail.starts_with("Enqueued token limit reached"), "{detail}");
    assert!(matches!(pressure, Pressure::Tokens(TokenLimit { stated: Some(90_000) })), "{pressure:?}");
}

/// OpenAI refuses the batch and names the lines; Anthropic lets the rest run.
pub(super) async fn bad_lines_are_named(desk: Desk) {
    let mut bodies: Vec<_> = ["a", "b", "c", "d"].iter().map(|text| desk.body(text)).collect();
    bodies[1]["stream"] = json!(true);
    bodies[3]["model"] = json!("nonexistent-1");
    let order = desk.order_of("bad", bodies);
    if desk.is_openai() {
        let status = desk.settled(&desk.created(&order).await).await;
        let RemoteStatus::Refused(Refusal::Lines(faults)) = status else { panic!("{status:?}") };
        let told: Vec<_> = faults.iter().map(|fault| (fault.line, fault.code.as_deref())).collect();
        assert_eq!(told, [(2, Some("streaming_unsupported")), (4, Some("model_not_found"))]);
        assert!(faults.iter().all(|fault| !fault.message.is_empty()));
    } else {
        let outcomes: Vec<_> = desk.outcomes(&order).await.into_values().collect();
        assert_eq!(failure(&outcomes[1]).code, FailureCode::InvalidRequest);
        assert_eq!(failure(&outcomes[3]).code, FailureCode::NotFound);
        answer(&outcomes[0]);
        answer(&outcomes[2]);
    }
}

pub(super) async fn a_lost_input_is_told_from_a_bad_one(desk: Desk) {
    let order = desk.order("lost", &["a"]);
    let Some(input) = desk.provider.upload(&order.parcel).await.expect("upload") else { return };
    desk.provider.discard(&input).await.expect("discard");
    let created = desk.provider.create(&order.parcel, Some(&input)).await.expect("the file is looked at later");
    let status = desk.settled(&created.remote).await;
    assert!(matches!(status, RemoteStatus::Refused(Refusal::InputLost { .. })), "{status:?}");
    desk.sim.settings(json!({"openai": {"missing_file": "reject"}})).await;
    let refused = desk.provider.create(&order.parcel, Some(&input)).await;
    assert!(matches!(refused, Err(CreateError::NotCreated(CallError::NotFound { .. }))), "{refused:?}");
}

pub(super) async fn an_input_is_discarded_once_or_twice(desk: Desk) {
    let order = desk.order("discard", &["a"]);
    let Some(input) = desk.provider.upload(&order.parcel).await.expect("upload") else {
        assert!(!desk.is_openai());
        return;
    };
    for _ in 0..2 {
        desk.provider.discard(&input).await.expect("discard");
    }
}

pub(super) async fn unknown_status_words_mean_running(desk: Desk) {
    let member = if desk.is_openai() { "status" } else { "processing_status" };
    desk.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"show": {"in_progress": {member: "paused"}}, "settings": {"in_progress_s": 50}}})).await;
    let order = desk.order("word", &["a"]);
    let remote = desk.created(&order).await;
    desk.sim.advance(1.0).await;
    assert_eq!(desk.status(&remote).await, RemoteStatus::Running { reported: 0 });
    assert_eq!(by_id(&order, desk.harvest(&desk.end(&remote).await).await.expect("harvest")).len(), 1);
}

/// And capital letters are the same word (Azure).
pub(super) async fn empty_file_ids_mean_no_file(desk: Desk) {
    if !desk.is_openai() {
        return;
    }
    desk.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"show": {"completed": {"status": "Completed", "error_file_id": "", "request_counts": null}}}})).await;
    let order = desk.order("empty", &["a", "b"]);
    let ended = desk.end(&desk.created(&order).await).await;
    assert_eq!(ended.sources.len(), 1);
    assert_eq!(by_id(&order, desk.harvest(&ended).await.expect("harvest")).len(), 2);
}
