//! Calls that fail: what they mean, and what they must not say.

use super::desk::Desk;
use batchgate::provider::{CallError, CreateError};
use serde_json::{Value, json};
use std::time::Duration;

async fn on(desk: &Desk, route: &str, fault: Value) {
    desk.sim.fault(json!({"match": {"route": route}, "fault": fault})).await;
}

pub(super) async fn retry_after_is_handed_on(desk: Desk) {
    let order = desk.order("after", &["a"]);
    on(&desk, "batches.create", json!({"status": 429, "retry_after": 7})).await;
    let refused = desk.create(&order).await;
    assert!(
        matches!(refused, Err(CreateError::NotCreated(CallError::Again { after: Some(wait), .. })) if wait == Duration::from_secs(7))
    );
    let remote = desk.created(&order).await;
    on(&desk, "batches.get", json!({"status": 429, "headers": {"retry-after-ms": "1500", "retry-after": "60"}})).await;
    let refused = desk.provider.status(&remote).await;
    assert!(matches!(refused, Err(CallError::Again { after: Some(wait), .. }) if wait == Duration::from_millis(1500)));
    on(&desk, "batches.get", json!({"status": 503, "headers": {"retry-after": "Fri, 31 Dec 2100 23:59:59 GMT"}})).await;
    let refused = desk.provider.status(&remote).await;
    assert!(matches!(refused, Err(CallError::Again { after: Some(wait), .. }) if wait > Duration::from_secs(86_400)));
    on(&desk, "batches.get", json!({"status": 500})).await;
    assert!(matches!(desk.provider.status(&remote).await, Err(CallError::Again { after: None, .. })));
    desk.status(&remote).await;
}

pub(super) async fn wrong_keys_pause_and_name_no_key(desk: Desk) {
    let stranger = desk.provider_with(&["wrong-key-1234"], Duration::from_secs(15));
    let order = desk.order("keys", &["a secret prompt"]);
    let remote = desk.created(&order).await;
    let input = desk.provider.upload(&order.parcel).await.expect("upload");
    let create = stranger.create(&order.parcel, input.as_ref()).await.expect_err("no entry");
    assert!(matches!(create, CreateError::NotCreated(CallError::Paused { .. })), "{create:?}");
    let status = stranger.status(&remote).await.expect_err("no entry");
    assert!(matches!(status, CallError::Paused { .. }), "{status:?}");
    for text in [format!("{create} {create:?}"), format!("{status} {status:?}")] {
        assert!(!text.contains("wron") && !text.contains("secret"), "{text}");
    }
}

pub(super) async fn a_second_key_reads_but_never_creates(desk: Desk) {
    let order = desk.order("rotate", &["a"]);
    let remote = desk.created(&order).await;
    let rotated = desk.provider_with(&["old-key", "sim-key"], Duration::from_secs(15));
    rotated.status(&remote).await.expect("the second key reads");
    let ended = desk.end(&remote).await;
    assert_eq!(desk.harvest_with(&rotated, &ended).await.expect("the second key downloads").len(), 1);
    let input = desk.provider.upload(&order.parcel).await.expect("upload");
    let create = rotated.create(&order.parcel, input.as_ref()).await;
    assert!(matches!(create, Err(CreateError::NotCreated(CallError::Paused { .. }))), "{create:?}");
    let unknown = batchgate::provider::RemoteId("batch_unknown".to_owned());
    for keys in [["old-key", "sim-key"], ["sim-key", "old-key"]] {
        let status = desk.provider_with(&keys, Duration::from_secs(15)).status(&unknown).await;
        assert!(matches!(status, Err(CallError::NotFound { .. })), "a key that works has the last word: {status:?}");
    }
}

pub(super) async fn errors_mean_what_the_table_says(desk: Desk) {
    let order = desk.order("table", &["a"]);
    let remote = desk.created(&order).await;
    for html in [false, true] {
        for status in [401, 402, 403, 404, 408, 409, 429, 500, 502, 503, 504, 529, 400, 413, 422] {
            on(&desk, "batches.get", json!({"status": status, "html": html})).await;
            let error = desk.provider.status(&remote).await.expect_err("a fault");
            let right = match status {
                401..=403 => matches!(error, CallError::Paused { .. }),
                404 => matches!(error, CallError::NotFound { .. }),
                400 | 413 | 422 => matches!(error, CallError::Refused { status: got, .. } if i64::from(got) == status),
                _ => matches!(error, CallError::Again { .. }),
            };
            assert!(right, "{status}, html: {html}: {error:?}");
            assert!(!error.to_string().contains("<html>"), "{error}");
        }
    }
    for fault in [
        json!({"reset": "before"}),
        json!({"reset": "after"}),
        json!({"status": 200, "body": "<html>"}),
        json!({"truncate": {"fraction": 0.5, "framing": "length"}}),
    ] {
        on(&desk, "batches.get", fault.clone()).await;
        let error = desk.provider.status(&remote).await;
        assert!(matches!(error, Err(CallError::Again { .. })), "{fault}: {error:?}");
    }
    desk.status(&remote).await;
}

pub(super) async fn refused_creates_are_no_doubts(desk: Desk) {
    let envelope = |kind: &str, message: &str, code: Value| json!({"type": "error", "error": {"type": kind, "message": message, "code": code, "param": null}});
    let order = desk.order("refused", &["a"]);
    for status in [408, 409, 429, 529] {
        on(&desk, "batches.create", json!({"status": status})).await;
        let error = desk.create(&order).await;
        assert!(matches!(error, Err(CreateError::NotCreated(CallError::Again { .. }))), "{status}: {error:?}");
    }
    for (status, html) in [(400, false), (413, false), (413, true), (422, false)] {
        on(&desk, "batches.create", json!({"status": status, "html": html})).await;
        let error = desk.create(&order).await;
        assert!(
            matches!(error, Err(CreateError::NotCreated(CallError::Refused { status: got, .. })) if got == status),
            "{status}: {error:?}"
        );
    }
    let spent = if desk.is_openai() {
        vec![(429, envelope("insufficient_quota", "You exceeded your current quota.", json!("insufficient_quota")))]
    } else {
        let mut capped = envelope("rate_limit_error", "m", Value::Null);
        capped["error"]["details"] = json!({"error_code": "enforced_spend_limit_reached"});
        vec![
            (429, capped),
            (400, envelope("invalid_request_error", "Your credit balance is too low to access the API.", Value::Null)),
            (402, envelope("billing_error", "m", Value::Null)),
        ]
    };
    for (status, body) in spent {
        on(&desk, "batches.create", json!({"status": status, "body": body})).await;
        let error = desk.create(&order).await;
        assert!(matches!(error, Err(CreateError::NotCreated(CallError::Paused { .. }))), "{status} {body}: {error:?}");
    }
    assert_eq!(desk.sim.ledger().await["totals"]["batches"], 0);
}

pub(super) async fn a_silent_provider_is_given_up(desk: Desk) {
    let order = desk.order("silent", &["a"]);
    let remote = desk.created(&order).await;
    let hasty = desk.provider_with(&["sim-key"], Duration::from_millis(300));
    on(&desk, "batches.get", json!({"delay": 3.0})).await;
    let error = hasty.status(&remote).await;
    assert!(matches!(error, Err(CallError::Again { .. })), "{error:?}");
    let input = hasty.upload(&order.parcel).await.expect("upload");
    on(&desk, "batches.create", json!({"delay_after": 3.0})).await;
    let error = hasty.create(&order.parcel, input.as_ref()).await;
    assert!(matches!(error, Err(CreateError::Unknown { .. })), "{error:?}");
    assert_eq!(desk.sim.ledger().await["totals"]["batches"], 2, "it was made, once");
}

pub(super) async fn a_fresh_batch_may_not_be_visible_yet(desk: Desk) {
    on(&desk, "batches.create", json!({"hidden_s": 200})).await;
    let order = desk.order("fresh", &["a"]);
    let remote = desk.created(&order).await;
    assert!(matches!(desk.provider.status(&remote).await, Err(CallError::NotFound { .. })));
    desk.sim.advance(201.0).await;
    desk.end(&remote).await;
}
