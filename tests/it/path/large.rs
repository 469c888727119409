//! Many prompts, many chunks, two gateways on one Redis, results in any order.

use crate::support::{
    Batch, Kind, World, again,
    check::{answered, paid},
    claude,
    client::id,
    for_both, gpt, nothing_is_left_behind,
};
use std::collections::BTreeMap;

for_both!(three_thousand_prompts_in_chunks_of_a_hundred_over_two_gateways);

async fn three_thousand_prompts_in_chunks_of_a_hundred_over_two_gateways(kind: Kind) {
    let mut world = World::new(kind).await;
    world.start_gateway().await;
    let prompts = (0..3_000).map(|n| {
        let text = format!("question {n} {}", "x".repeat(n % 97));
        if n % 3 == 0 { gpt(&text) } else { claude(&text) }.named(&format!("id-{n}"))
    });
    let batch = Batch::of(prompts).field("chunk", 100).ndjson();
    let object = batch.post(world.client()).await.accepted();
    let first = answered(&world, &batch, id(&object)).await;
    assert_eq!(first.object["chunks"]["settled"], 30, "{}", first.object);
    let once: BTreeMap<String, u64> = batch.bill();
    assert_eq!(paid(&world).await, once, "every question is paid once");
    // Both doors read the same.
    let other = world.gateways[1].client.results(id(&object)).await;
    assert_eq!(other, first.results);
    again(&world, &batch, &first).await;
    nothing_is_left_behind(&world).await;
    for gateway in &world.gateways {
        let log = gateway.process.said();
        assert!(!log.contains("question 1") && !log.contains("echo "), "no prompt and no answer in a log");
    }
}
