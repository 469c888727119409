//! Samples, repeats and salt: when is the same question asked again, and when is it not?

use crate::support::{
    Batch, Kind, World, again, check,
    check::{check_once, paid},
    claude,
    client::{count, id},
    for_both, gpt,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

for_both!(
    samples_are_calls_of_their_own_and_come_back_in_order,
    identical_prompts_are_independent_samples,
    shared_repeats_have_one_answer,
    one_more_repeat_buys_one_more_answer,
    another_salt_is_another_answer,
);

/// The number of the paid call behind each result, in order.
pub(super) async fn calls(world: &World, batch: &Value) -> Vec<u64> {
    let full = world.client().lines(&format!("/batches/{}/results?response=full", id(batch))).await;
    let call = |result: &Value| result["response"]["usage"]["sim_call"].as_u64().unwrap_or_else(|| panic!("{result}"));
    full.iter().map(call).collect()
}

async fn samples_are_calls_of_their_own_and_come_back_in_order(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of([claude("Dice"), gpt("Dice"), claude("Coin")]).field("samples", 5).field("chunk", 4);
    let first = check(&world, &batch).await;
    assert_eq!(count(&first.object, "repeats"), 0, "samples alone make no repeats");
    let bought = calls(&world, &first.object).await;
    assert_eq!(bought.iter().collect::<BTreeSet<_>>().len(), 15, "each sample is a call of its own: {bought:?}");
    let second = check_once(&world, &batch).await;
    assert_eq!(calls(&world, &second.object).await, bought, "the same samples in the same order");
    // Fewer samples are the first ones.
    let fewer = check_once(&world, &batch.clone().field("samples", 2)).await;
    let expected: Vec<u64> = [0, 1, 5, 6, 10, 11].map(|n: usize| bought[n]).to_vec();
    assert_eq!(calls(&world, &fewer.object).await, expected);
}

async fn identical_prompts_are_independent_samples(kind: Kind) {
    let world = World::new(kind).await;
    let prompts = ["a", "b", "a", "a", "b"].map(claude);
    let batch = Batch::of(prompts).field("chunk", 2);
    let first = check(&world, &batch).await;
    assert_eq!(count(&first.object, "repeats"), 3, "{}", first.object);
    let bought = calls(&world, &first.object).await;
    assert_eq!(bought.iter().collect::<BTreeSet<_>>().len(), 5, "{bought:?}");
    let second = check_once(&world, &batch).await;
    assert_eq!(calls(&world, &second.object).await, bought, "a rerun reads the same samples in the same order");
    // Two samples of one prompt are the same two questions as the prompt twice.
    let sampled = check_once(&world, &Batch::of([claude("a")]).field("samples", 3)).await;
    assert_eq!(calls(&world, &sampled.object).await, [bought[0], bought[2], bought[3]]);
}

async fn shared_repeats_have_one_answer(kind: Kind) {
    let world = World::new(kind).await;
    let prompts = ["a", "a", "b", "a"].map(claude).into_iter().chain(["a", "a"].map(gpt));
    let batch = Batch::of(prompts).field("repeats", "share").field("chunk", 1);
    let first = check(&world, &batch).await;
    assert_eq!(count(&first.object, "repeats"), 3, "{}", first.object);
    let bought = calls(&world, &first.object).await;
    assert_eq!([bought[1], bought[3], bought[5]], [bought[0], bought[0], bought[4]], "{bought:?}");
    let names: Vec<_> = (0..200).map(|n| claude("the same for all").named(&format!("n{n}"))).collect();
    let many = check(&world, &Batch::of(names).field("repeats", "share").field("samples", 2)).await;
    assert_eq!(calls(&world, &many.object).await.into_iter().collect::<BTreeSet<_>>().len(), 2);
    let second = check_once(&world, &batch).await;
    assert_eq!(count(&second.object, "cached"), 6, "a shared repeat counts as its first does");
}

async fn one_more_repeat_buys_one_more_answer(kind: Kind) {
    let world = World::new(kind).await;
    let one = check(&world, &Batch::of([claude("a")])).await;
    let batch = Batch::of(["a", "a", "a"].map(claude));
    let three = check(&world, &batch).await;
    let sources: Vec<&Value> = three.results.iter().map(|result| &result["source"]).collect();
    assert_eq!(sources, ["cache", "provider", "provider"]);
    assert_eq!(calls(&world, &three.object).await[0], calls(&world, &one.object).await[0]);
}

async fn another_salt_is_another_answer(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of([claude("a"), gpt("b")]);
    let plain = check(&world, &batch).await;
    let mut before: u64 = paid(&world).await.values().sum();
    for (salt, new) in [
        (json!("x"), 2),
        (json!("y"), 2),
        (json!(1), 2),
        (json!("1"), 2),
        (json!(1.0), 0),
        (json!("x"), 0),
        (json!(""), 2),
    ] {
        let salted = batch.clone().field("salt", salt.clone());
        let first = check_once(&world, &salted).await;
        let after: u64 = paid(&world).await.values().sum();
        assert_eq!(after - before, new, "salt {salt}");
        before = after;
        again(&world, &salted, &first).await;
    }
    again(&world, &batch, &plain).await;
}
