//! The five ways to deal with the cache.

use crate::support::{
    Batch, Kind, World, check,
    check::{check_once, paid},
    claude,
    client::{count, id},
    for_both, gpt,
};
use serde_json::Value;

for_both!(
    refresh_replaces_for_later_batches_and_never_for_ended_ones,
    bypass_asks_again_and_overwrites_nothing,
    bypass_fills_what_is_free,
    only_never_calls_a_provider,
    off_neither_reads_nor_stores,
);

async fn full(world: &World, batch: &Value) -> Vec<Value> {
    let path = format!("/batches/{}/results?response=full", id(batch));
    world.client().lines(&path).await
}

fn bodies(full: &[Value]) -> Vec<&Value> {
    full.iter().map(|result| &result["response"]).collect()
}

async fn bought(world: &World) -> u64 {
    paid(world).await.values().sum()
}

fn four() -> Batch {
    Batch::of([claude("a"), gpt("b"), claude("c"), claude("a")]).field("chunk", 2)
}

async fn refresh_replaces_for_later_batches_and_never_for_ended_ones(kind: Kind) {
    let world = World::new(kind).await;
    let first = check(&world, &four()).await;
    let old = full(&world, &first.object).await;
    let fresh = check_once(&world, &four().field("cache", "refresh")).await;
    assert_eq!((bought(&world).await, count(&fresh.object, "cached")), (8, 0), "all is asked again");
    let new = full(&world, &fresh.object).await;
    assert!(bodies(&old).iter().zip(bodies(&new)).all(|(old, new)| **old != *new), "another call answered each");
    assert_eq!(full(&world, &first.object).await, old, "ended means ended");
    let later = check_once(&world, &four()).await;
    assert_eq!(bodies(&full(&world, &later.object).await), bodies(&new), "later batches read the new answers");
    assert_eq!((bought(&world).await, count(&later.object, "cached")), (8, 4));
}

async fn bypass_asks_again_and_overwrites_nothing(kind: Kind) {
    let world = World::new(kind).await;
    let first = check(&world, &four()).await;
    let old = full(&world, &first.object).await;
    let apart = check_once(&world, &four().field("cache", "bypass")).await;
    assert_eq!((bought(&world).await, count(&apart.object, "cached")), (8, 0));
    let own = full(&world, &apart.object).await;
    assert!(bodies(&old).iter().zip(bodies(&own)).all(|(old, own)| **old != *own), "it keeps its own answers");
    let later = check_once(&world, &four()).await;
    assert_eq!(bodies(&full(&world, &later.object).await), bodies(&old), "the first answer stays");
    assert_eq!(full(&world, &apart.object).await, own);
}

async fn bypass_fills_what_is_free(kind: Kind) {
    let world = World::new(kind).await;
    let apart = check_once(&world, &four().field("cache", "bypass")).await;
    let own = full(&world, &apart.object).await;
    let later = check(&world, &four()).await;
    assert_eq!(count(&later.object, "cached"), 4, "{}", later.object);
    assert_eq!(bodies(&full(&world, &later.object).await), bodies(&own));
}

async fn only_never_calls_a_provider(kind: Kind) {
    let world = World::new(kind).await;
    let misses = Batch::of([claude("a").fails("not_cached"), gpt("b").fails("not_cached")]).field("cache", "only");
    let object = misses.post(world.client()).await.accepted();
    assert_eq!(object["status"], "ended", "there is nothing to wait for: {object}");
    check(&world, &misses).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 0);
    check(&world, &Batch::of([claude("a")])).await;
    check(
        &world,
        &Batch::of([claude("a"), gpt("b").fails("not_cached"), claude("a").fails("not_cached")]).field("cache", "only"),
    )
    .await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 1);
}

async fn off_neither_reads_nor_stores(kind: Kind) {
    let world = World::new(kind).await;
    for n in 1..=2 {
        let apart = check_once(&world, &four().field("cache", "off")).await;
        assert_eq!((bought(&world).await, count(&apart.object, "cached")), (4 * n, 0));
    }
    let first = check_once(&world, &four()).await;
    assert_eq!((bought(&world).await, count(&first.object, "cached")), (12, 0), "off left nothing in the cache");
    let old = full(&world, &first.object).await;
    check_once(&world, &four().field("cache", "off")).await;
    let later = check(&world, &four()).await;
    assert_eq!(bodies(&full(&world, &later.object).await), bodies(&old), "off replaced nothing");
}
