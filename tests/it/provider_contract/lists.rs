//! The walk through an account's batches.

use super::desk::Desk;
use batchgate::provider::{BatchProvider, CallError, Cursor, Label, Listed, RemoteId, RemoteStatus};
use serde_json::json;
use std::time::Duration;

/// Every batch of the list, page by page.
async fn walk(provider: &dyn BatchProvider) -> Result<Vec<Listed>, CallError> {
    let (mut found, mut place) = (Vec::new(), Cursor::default());
    for _ in 0..20 {
        let page = provider.list(&place).await?;
        found.extend(page.batches);
        let Some(next) = page.next else { return Ok(found) };
        // As the janitor keeps it between two turns.
        let kept = serde_json::to_string(&next).expect("a cursor serializes");
        place = serde_json::from_str(&kept).expect("and comes back");
    }
    panic!("the walk has no end");
}

fn ids(batches: &[Listed]) -> Vec<&RemoteId> {
    batches.iter().map(|batch| &batch.remote).collect()
}

pub(super) async fn the_list_says_whose_each_batch_is_and_how_far(desk: Desk) {
    assert_eq!(walk(&*desk.provider).await.expect("an empty list"), []);
    let (first, second) = (desk.order("first", &["a", "b"]), desk.order("second", &["c"]));
    let older = desk.created(&first).await;
    desk.end(&older).await;
    let newer = desk.created(&second).await;
    let found = walk(&*desk.provider).await.expect("list");
    assert_eq!(ids(&found), [&newer, &older], "newest first");
    let label = |chunk: &str| match desk.is_openai() {
        true => Label::Says { deployment: "suite".to_owned(), chunk: chunk.to_owned() },
        false => Label::Unkept,
    };
    for (batch, order) in [(&found[0], &second), (&found[1], &first)] {
        assert_eq!((&batch.label, batch.endpoint), (&label(&order.parcel.chunk), Some(order.parcel.endpoint)));
    }
    assert!(matches!(found[0].status, RemoteStatus::Running { .. }), "{:?}", found[0]);
    assert_eq!(found[0].ended_at, None);
    let RemoteStatus::Ended(ended) = &found[1].status else { panic!("{:?}", found[1]) };
    assert!(found[1].ended_at.is_some());
    assert_eq!(desk.harvest(ended).await.expect("the list says where the results are").len(), 2);
}

pub(super) async fn a_long_walk_meets_every_batch_once(desk: Desk) {
    let order = desk.order("many", &["a"]);
    let input = desk.provider.upload(&order.parcel).await.expect("upload");
    let mut made = Vec::new();
    for _ in 0..205 {
        made.push(desk.provider.create(&order.parcel, input.as_ref()).await.expect("create").remote);
    }
    made.reverse();
    let found = walk(&*desk.provider).await.expect("list");
    assert_eq!(ids(&found), made.iter().collect::<Vec<_>>());
}

pub(super) async fn every_key_s_batches_are_walked(desk: Desk) {
    let wait = Duration::from_secs(15);
    let hidden = desk.provider_with(&["other-key"], wait);
    let order = desk.order("keys", &["a"]);
    let input = hidden.upload(&order.parcel).await.expect("upload");
    let others = hidden.create(&order.parcel, input.as_ref()).await.expect("create").remote;
    let own = desk.created(&order).await;
    for (keys, expected) in [
        (["sim-key", "other-key"], vec![&own, &others]),
        (["other-key", "sim-key"], vec![&others, &own]),
        (["wrong-key", "sim-key"], vec![&own]),
        (["sim-key", "wrong-key"], vec![&own]),
    ] {
        let found = walk(&*desk.provider_with(&keys, wait)).await.expect("one is let in");
        assert_eq!(ids(&found), expected, "{keys:?}");
    }
    let refused = walk(&*desk.provider_with(&["wrong-key", "worse-key"], wait)).await;
    assert!(matches!(refused, Err(CallError::Paused { .. })), "{refused:?}");
}

pub(super) async fn a_list_that_cannot_be_read_is_no_empty_list(desk: Desk) {
    desk.created(&desk.order("there", &["a"])).await;
    for fault in [
        json!({"status": 500}),
        json!({"status": 429, "retry_after": 3}),
        json!({"status": 200, "body": "<html>"}),
        json!({"status": 200, "body": "{}"}),
        json!({"truncate": {"fraction": 0.5, "framing": "length"}}),
        json!({"reset": "before"}),
    ] {
        desk.sim.fault(json!({"match": {"route": "batches.list"}, "fault": fault})).await;
        let error = walk(&*desk.provider).await;
        assert!(matches!(error, Err(CallError::Again { .. })), "{fault}: {error:?}");
        assert_eq!(walk(&*desk.provider).await.expect("the next time").len(), 1);
    }
}
