//! Results on their way in: spoiled, cut short, slow, late, elsewhere.

use super::desk::{Desk, by_id};
use batchgate::{
    domain::outcome::Outcome,
    provider::{CallError, Ended, LineOutcome},
};
use serde_json::{Value, json};
use std::time::Duration;

const TEXTS: [&str; 6] = ["a", "b [[unicode]]", "c", "d", "e", "f"];

async fn spoiled(desk: &Desk, spoil: Value) {
    desk.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"results": spoil}})).await;
}

async fn ended(desk: &Desk) -> (super::desk::Order, Ended) {
    let order = desk.order("down", &TEXTS);
    let ended = desk.end(&desk.created(&order).await).await;
    (order, ended)
}

pub(super) async fn spoiled_lines_cost_only_themselves(desk: Desk) {
    spoiled(&desk, json!({"drop": 1, "duplicate": 2, "conflict": 1, "unknown_id": 2, "garbage": 3, "blank": 2})).await;
    let (order, ended) = ended(&desk).await;
    let lines = desk.harvest(&ended).await.expect("harvest");
    // 6 less the dropped one, 2 repeats, 1 contradiction, 2 strays; broken and blank lines are none.
    assert_eq!(lines.len(), 10);
    let strays = lines.iter().filter(|line| !order.bodies.contains_key(&line.custom_id)).count();
    assert_eq!(strays, 2);
    let (answers, failures): (Vec<_>, Vec<_>) = lines
        .iter()
        .filter(|line| order.bodies.contains_key(&line.custom_id))
        .partition(|line| matches!(line.outcome, LineOutcome::Final(Outcome::Answered(_))));
    assert_eq!((answers.len(), failures.len()), (7, 1));
    for line in answers {
        desk.check_answer(&order, &line.custom_id, &line.outcome).await;
    }
}

pub(super) async fn line_ends_marks_and_blanks_do_not_matter(desk: Desk) {
    for spoil in [
        json!({"crlf": true}),
        json!({"bom": true}),
        json!({"no_final_newline": true}),
        json!({"crlf": true, "bom": true, "blank": 3, "no_final_newline": true}),
    ] {
        spoiled(&desk, spoil).await;
        let (order, ended) = ended(&desk).await;
        let outcomes = by_id(&order, desk.harvest(&ended).await.expect("harvest"));
        assert_eq!(outcomes.len(), TEXTS.len());
        for (id, outcome) in &outcomes {
            desk.check_answer(&order, id, outcome).await;
        }
    }
}

pub(super) async fn a_huge_line_is_a_line(desk: Desk) {
    spoiled(&desk, json!({"pad": 8 * 1024 * 1024})).await;
    let (order, ended) = ended(&desk).await;
    assert_eq!(by_id(&order, desk.harvest(&ended).await.expect("harvest")).len(), TEXTS.len());
}

pub(super) async fn a_short_download_is_an_error_in_every_framing(desk: Desk) {
    let (order, ended) = ended(&desk).await;
    for framing in ["length", "chunked", "close"] {
        for at_line_end in [false, true] {
            let cut = json!({"fraction": 0.6, "framing": framing, "at_line_end": at_line_end});
            desk.sim.fault(json!({"match": {"route": desk.results_route()}, "fault": {"truncate": cut}})).await;
            let short = desk.harvest(&ended).await;
            assert!(matches!(short, Err(CallError::Again { .. })), "{framing}, at line end: {at_line_end}: {short:?}");
            assert_eq!(by_id(&order, desk.harvest(&ended).await.expect("the second time")).len(), TEXTS.len());
        }
    }
}

pub(super) async fn a_whole_download_that_ends_by_closing_is_whole(desk: Desk) {
    let (order, ended) = ended(&desk).await;
    desk.sim.fault(json!({"match": {"route": desk.results_route()}, "fault": {"truncate": {"fraction": 1.0, "framing": "close"}}})).await;
    assert_eq!(by_id(&order, desk.harvest(&ended).await.expect("harvest")).len(), TEXTS.len());
}

/// Longer than the stall limit, but never so long without a byte.
pub(super) async fn a_slow_download_is_not_a_dead_one(desk: Desk) {
    let (order, ended) = ended(&desk).await;
    let provider = desk.provider_with(&["sim-key"], Duration::from_millis(400));
    desk.sim
        .fault(json!({"match": {"route": desk.results_route()}, "fault": {"trickle": {"bytes": 512, "every": 0.1}}}))
        .await;
    let began = std::time::Instant::now();
    assert_eq!(by_id(&order, desk.harvest_with(&provider, &ended).await.expect("harvest")).len(), TEXTS.len());
    assert!(began.elapsed() > Duration::from_millis(400), "it was slow: {:?}", began.elapsed());
    desk.sim
        .fault(json!({"match": {"route": desk.results_route()}, "fault": {"trickle": {"bytes": 512, "every": 5.0}}}))
        .await;
    let dead = desk.harvest_with(&provider, &ended).await;
    assert!(matches!(&dead, Err(CallError::Again { detail, .. }) if detail.contains("no byte came")), "{dead:?}");
}

pub(super) async fn results_may_be_late(desk: Desk) {
    desk.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"results_hidden_s": 500}})).await;
    let (order, ended) = ended(&desk).await;
    assert!(matches!(desk.harvest(&ended).await, Err(CallError::NotFound { .. })));
    desk.sim.advance(600.0).await;
    assert_eq!(by_id(&order, desk.harvest(&ended).await.expect("harvest")).len(), TEXTS.len());
}

pub(super) async fn a_redirect_is_followed_but_no_key_leaves_the_house(desk: Desk) {
    let (order, ended) = ended(&desk).await;
    let path = if desk.is_openai() {
        format!("/openai/v1/files/{}/content", ended.sources[0])
    } else {
        format!("/anthropic{}", ended.sources[0])
    };
    let redirect = async |to: String| {
        let fault = json!({"status": 302, "headers": {"location": to}, "body": "{}"});
        desk.sim.fault(json!({"match": {"route": desk.results_route()}, "fault": fault})).await;
    };
    redirect(path.clone()).await;
    assert_eq!(by_id(&order, desk.harvest(&ended).await.expect("the same house")).len(), TEXTS.len());
    // The same server under another name: without the key it refuses.
    redirect(format!("{}{path}", desk.sim.base.replace("127.0.0.1", "localhost"))).await;
    assert!(matches!(desk.harvest(&ended).await, Err(CallError::Paused { .. })));
}
