//! Provider windows that close, batches that are refused whole, words nobody knows: nothing is lost, all is asked again.

use crate::support::{
    Batch, Kind, World, check,
    check::paid,
    client::{count, id},
    for_both, gpt, mixed, settles,
};
use serde_json::json;

for_both!(
    what_a_closed_window_cut_off_is_asked_again,
    a_window_closes_on_a_batch_that_did_nothing,
    somebody_elses_cancel_at_the_provider_is_no_end,
    all_failed_means_no_output_file,
    the_token_limit_is_a_delay_and_never_a_failure,
    words_nobody_knows_mean_still_running,
    empty_and_missing_file_ids_mean_no_file,
);

async fn what_a_closed_window_cut_off_is_asked_again(kind: Kind) {
    let world = World::new(kind).await;
    let slow = json!({"settings": {"in_progress_s": 172_800}});
    world
        .sim
        .fault(json!([
            {"match": {"route": "batches.create", "provider": "openai"}, "fault": slow},
            {"match": {"route": "batches.create", "provider": "anthropic"}, "fault": slow},
        ]))
        .await;
    let batch = Batch::of(mixed("cut off", 10));
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), 2).await;
    world.sim.advance(86_500.0).await;
    let first = settles(&world, &batch, id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 4, "two, and two for the rest");
    assert_eq!(first.object["chunks"]["settled"], 4, "{}", first.object);
}

async fn a_window_closes_on_a_batch_that_did_nothing(kind: Kind) {
    let world = World::new(kind).await;
    let stuck = json!({"settings": {"in_progress_s": 1e12}});
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": stuck, "times": 2})).await;
    let batch = Batch::of(mixed("nothing done", 3));
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), 2).await;
    world.sim.advance(86_500.0).await;
    let first = settles(&world, &batch, id(&object)).await;
    assert_eq!(first.object["chunks"]["failed"], 0, "what was asked again is no failed chunk: {}", first.object);
}

async fn somebody_elses_cancel_at_the_provider_is_no_end(kind: Kind) {
    let world = World::new(kind).await;
    let slow = json!({"settings": {"in_progress_s": 1_000}});
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": slow, "times": 2})).await;
    let batch = Batch::of(mixed("cancelled elsewhere", 5));
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), 2).await;
    world.sim.advance(500.0).await;
    let http = reqwest::Client::new();
    for call in world.sim.calls("batches.create").await {
        let made = call["made"].as_str().expect("what the create made");
        let base =
            if call["provider"] == "openai" { world.sim.openai() } else { world.sim.anthropic() + "/v1/messages" };
        let cancel = http.post(format!("{base}/batches/{made}/cancel")).header("authorization", "Bearer sim-key");
        let reply = cancel.header("anthropic-version", "2023-06-01").send().await.expect("the simulator answers");
        assert!(reply.status().is_success(), "{:?}", reply.text().await);
    }
    settles(&world, &batch, id(&object)).await;
}

async fn all_failed_means_no_output_file(kind: Kind) {
    let world = World::new(kind).await;
    for (fail_kind, code) in [("invalid_request", "invalid_request"), ("server", "")] {
        let fault = json!({"results": {"fail": "all", "fail_kind": fail_kind}});
        world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": fault, "times": 2})).await;
        let prompts =
            mixed(fail_kind, 3).into_iter().map(|prompt| if code.is_empty() { prompt } else { prompt.fails(code) });
        let batch = Batch::of(prompts);
        let before: u64 = paid(&world).await.values().sum();
        let object = batch.post(world.client()).await.accepted();
        let first = crate::support::check::answered(&world, &batch, id(&object)).await;
        let bought = paid(&world).await.values().sum::<u64>() - before;
        assert_eq!(bought, count(&first.object, "succeeded"));
        assert_eq!(first.object["chunks"]["failed"], if code.is_empty() { 0 } else { 2 }, "{}", first.object);
    }
}

async fn the_token_limit_is_a_delay_and_never_a_failure(kind: Kind) {
    let world = World::new(kind).await;
    let fault = json!({"validation_errors": "token_limit_exceeded"});
    let rule = json!({"match": {"route": "batches.create", "provider": "openai"}, "fault": fault, "times": 3});
    world.sim.fault(rule).await;
    let batch = Batch::of((0..5).map(|n| gpt(&format!("Say {n}"))));
    let first = check(&world, &batch).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 4);
    assert_eq!(first.object["chunks"]["failed"], 0, "{}", first.object);
}

async fn words_nobody_knows_mean_still_running(kind: Kind) {
    let world = World::new(kind).await;
    let strange = json!({"status": "pondering", "processing_status": "pondering", "surprise": [1, {"x": null}]});
    let show = json!({"in_progress": strange, "finalizing": strange, "validating": strange, "*": {"new_member": {}}});
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"show": show}, "times": 0})).await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 0.8}, "openai": {"in_progress_s": 0.8}})).await;
    check(&world, &Batch::of(mixed("pondered", 3))).await;
}

async fn empty_and_missing_file_ids_mean_no_file(kind: Kind) {
    let world = World::new(kind).await;
    for (n, show) in [
        json!({"completed": {"error_file_id": ""}}),
        json!({"completed": {"error_file_id": null, "request_counts": null}}),
        json!({"completed": {"request_counts": {"total": 0, "completed": 0, "failed": 0}}, "ended": {"request_counts": {}}}),
        json!({"*": {"expires_at": null, "metadata": null, "usage": null}}),
    ]
    .into_iter()
    .enumerate()
    {
        world.sim.clear_faults().await;
        world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"show": show}, "times": 0})).await;
        check(&world, &Batch::of(mixed(&format!("file ids {n}"), 2))).await;
    }
}
