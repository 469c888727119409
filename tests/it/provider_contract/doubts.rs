//! Creates whose answer was lost, and how they are found again.

use super::desk::{Desk, Order, by_id};
use batchgate::provider::{CallError, Candidate, CreateError, Doubt, Evidence, ReadError};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

async fn on_create(desk: &Desk, fault: Value) {
    desk.sim.fault(json!({"match": {"route": "batches.create"}, "fault": fault})).await;
}

/// A create that ends in doubt, as the worker would write it down.
async fn doubtful(desk: &Desk, order: &Order) -> Doubt {
    let newest_before = desk.provider.newest().await.expect("list");
    let input = desk.provider.upload(&order.parcel).await.expect("upload");
    let lost = desk.provider.create(&order.parcel, input.as_ref()).await;
    assert!(matches!(lost, Err(CreateError::Unknown { .. })), "{lost:?}");
    Doubt { input, newest_before, ..desk.doubt(order) }
}

async fn find(desk: &Desk, doubt: &Doubt) -> Vec<Candidate> {
    desk.provider.find(doubt).await.expect("find")
}

async fn batches(desk: &Desk) -> u64 {
    desk.sim.ledger().await["totals"]["batches"].as_u64().expect("a count")
}

pub(super) async fn a_reset_before_the_create_leaves_nothing_to_find(desk: Desk) {
    desk.created(&desk.order("older", &["a", "b"])).await;
    on_create(&desk, json!({"reset": "before"})).await;
    let doubt = doubtful(&desk, &desk.order("reset", &["a", "b"])).await;
    assert_eq!(find(&desk, &doubt).await, []);
    assert_eq!(batches(&desk).await, 1, "it was not sent again");
}

pub(super) async fn a_reset_after_the_create_leaves_a_batch_to_find(desk: Desk) {
    desk.created(&desk.order("older", &["a", "b"])).await;
    on_create(&desk, json!({"reset": "after"})).await;
    let order = desk.order("reset", &["a", "b"]);
    let doubt = doubtful(&desk, &order).await;
    let found = find(&desk, &doubt).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].evidence, if desk.is_openai() { Evidence::Label } else { Evidence::Size });
    assert_eq!(batches(&desk).await, 2, "it was not sent again");
    let ended = desk.end(&found[0].remote).await;
    assert_eq!(by_id(&order, desk.harvest(&ended).await.expect("harvest")).len(), 2);
}

pub(super) async fn server_errors_on_create_are_doubts(desk: Desk) {
    for (number, fault) in [
        json!({"status": 500}),
        json!({"status": 502, "html": true}),
        json!({"status": 503}),
        json!({"status": 504}),
        json!({"status": 500, "after": true}),
        json!({"status": 200, "body": "<html>"}),
        json!({"status": 200, "body": "{}", "after": true}),
        json!({"truncate": {"fraction": 0.5, "framing": "length"}}),
    ]
    .into_iter()
    .enumerate()
    {
        let made = fault["after"] == true || fault.get("truncate").is_some();
        on_create(&desk, fault.clone()).await;
        let doubt = doubtful(&desk, &desk.order(&format!("server{number}"), &["a"])).await;
        assert_eq!(find(&desk, &doubt).await.len(), usize::from(made), "{fault}");
    }
}

pub(super) async fn a_batch_hidden_from_the_list_is_found_later(desk: Desk) {
    on_create(&desk, json!({"reset": "after", "list_hidden_s": 100})).await;
    let doubt = doubtful(&desk, &desk.order("hidden", &["a"])).await;
    assert_eq!(find(&desk, &doubt).await, []);
    desk.sim.advance(101.0).await;
    assert_eq!(find(&desk, &doubt).await.len(), 1);
}

/// OpenAI: by label, another chunk or attempt is not ours. Anthropic: by size, and newer than what was there.
pub(super) async fn only_our_own_batches_are_found(desk: Desk) {
    let order = desk.order("ours", &["a", "b"]);
    desk.created(&order).await;
    let again = Order {
        parcel: batchgate::provider::Parcel { attempt: 2, ..order.parcel.clone() },
        bodies: order.bodies.clone(),
    };
    on_create(&desk, json!({"reset": "after"})).await;
    let doubt = doubtful(&desk, &again).await;
    desk.created(&desk.order("other", &["a", "b", "c"])).await;
    let found = find(&desk, &doubt).await;
    assert_eq!(found.len(), 1, "{found:?}");
    let nobody = Doubt { chunk: "nobody".to_owned(), prompts: 7, input: None, ..doubt };
    assert_eq!(find(&desk, &nobody).await, []);
}

pub(super) async fn a_long_list_is_read_page_by_page(desk: Desk) {
    on_create(&desk, json!({"reset": "after"})).await;
    let order = desk.order("first", &["a", "b"]);
    let doubt = doubtful(&desk, &order).await;
    let other = desk.order("later", &["a"]);
    let input = desk.provider.upload(&other.parcel).await.expect("upload");
    for _ in 0..105 {
        desk.provider.create(&other.parcel, input.as_ref()).await.expect("create");
    }
    let found = find(&desk, &doubt).await;
    assert_eq!(found.len(), 1, "{found:?}");
}

pub(super) async fn what_never_left_was_not_created(desk: Desk) {
    let nobody = Desk::connect("http://127.0.0.1:9", desk.kind, &["sim-key"], Duration::from_secs(2));
    let order = desk.order("never", &["a"]);
    let input = desk.provider.upload(&order.parcel).await.expect("upload");
    let refused = nobody.create(&order.parcel, input.as_ref()).await;
    assert!(matches!(refused, Err(CreateError::NotCreated(CallError::Again { .. }))), "{refused:?}");

    // Our own side breaks off: the provider has half a body, and makes nothing of it.
    let mut broken = order.parcel.clone();
    let open = Arc::clone(&order.parcel.open);
    broken.open = Arc::new(move || open().chain(stream::iter([Err(ReadError("spool is gone".to_owned()))])).boxed());
    let mut longer = order.parcel.clone();
    longer.wire_bytes += 5;
    for parcel in [broken, longer] {
        let error = match desk.provider.upload(&parcel).await {
            Err(error) => error,
            Ok(input) => match desk.provider.create(&parcel, input.as_ref()).await {
                Err(CreateError::NotCreated(error)) => error,
                other => panic!("{other:?}"),
            },
        };
        let CallError::Again { detail, .. } = error else { panic!("{error:?}") };
        assert!(detail.contains("spool is gone") || detail.contains("planned were"), "{detail}");
    }
    assert_eq!(batches(&desk).await, 0);
}
