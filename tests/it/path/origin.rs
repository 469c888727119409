//! The case all this began with: more prompts than fit into one provider batch, asked twice.

use crate::support::{Batch, Kind, World, check, claude, for_both, gpt};

for_both!(the_origins_four_prompts_in_two_chunks_read_right_twice, the_same_at_openai,);

async fn the_origins_four_prompts_in_two_chunks_read_right_twice(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of((0..4).map(|n| claude(&format!("Say {n}")))).field("chunk", 2);
    let first = check(&world, &batch).await;
    assert_eq!(first.object["chunks"]["settled"], 2, "{}", first.object);
    assert_eq!(world.sim.calls("batches.create").await.len(), 2, "one provider batch per chunk");
}

async fn the_same_at_openai(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of((0..4).map(|n| gpt(&format!("Say {n}")))).field("chunk", 2);
    let first = check(&world, &batch).await;
    assert_eq!(first.object["chunks"]["settled"], 2, "{}", first.object);
    assert_eq!(world.sim.calls("batches.create").await.len(), 2, "one provider batch per chunk");
}
