//! The network between a gateway and its providers, and between a gateway and its Redis: requests that never arrive,
//! answers that are lost though the request was handled, answers that are cut, slow or late.

use crate::support::{
    Batch, Kind, Prompt, World, again,
    check::{answered, paid},
    claude,
    client::id,
    for_both, gpt,
    leftovers::time_passes,
    local::local,
    nothing_is_left_behind,
    proxy::{Behind, Proxy, Trouble},
    settles, stubborn, until,
};
use serde_json::json;
use std::time::Duration;

for_both!(
    no_call_of_a_provider_is_paid_twice_when_it_breaks,
    an_online_answer_that_is_lost_is_asked_once_more,
    no_reply_of_redis_is_needed,
    a_slow_network_is_no_reason_to_fail,
    redis_stands_still_for_longer_than_a_lease,
);

const SHORT: [(&str, &str); 2] = [("BATCHGATE_LEASE", "2s"), ("BATCHGATE_STALL", "1s")];

/// A world whose gateway reaches both providers through a proxy.
async fn before_the_providers(kind: Kind) -> (World, Proxy) {
    let mut world = World::empty(kind, &SHORT).await;
    let proxy = Proxy::before(Behind::Tcp(world.sim.address())).await;
    let base = format!("http://{}", proxy.address);
    world.configure(&format!(
        "[[providers]]\nname = \"anthropic\"\nkind = \"anthropic-batch\"\nbase_url = \"{base}/anthropic\"\n\
         api_key_env = [\"ANTHROPIC_API_KEY\"]\n\n\
         [[providers]]\nname = \"openai\"\nkind = \"openai-batch\"\nbase_url = \"{base}/openai/v1\"\n\
         api_key_env = [\"OPENAI_API_KEY\"]\n\n\
         [[providers]]\nname = \"local\"\nkind = \"openai-online\"\nbase_url = \"{base}/openai/v1\"\n\
         api_key_env = [\"OPENAI_API_KEY\"]\nmodels = [\"local-*\"]\nconcurrency = 4\n"
    ));
    world.start_gateway().await;
    (world, proxy)
}

/// A world whose gateway reaches Redis through a proxy.
async fn before_redis(kind: Kind) -> (World, Proxy) {
    let mut world = World::empty(kind, &SHORT).await;
    let proxy = Proxy::before(Behind::Unix(world.redis.socket())).await;
    world.set("BATCHGATE_REDIS_URL", format!("redis://{}", proxy.address));
    world.start_gateway().await;
    (world, proxy)
}

fn batch(label: &str) -> Batch {
    let prompts = (0..8).flat_map(|n| [claude(&format!("{label} {n}")), gpt(&format!("{label} {n}"))]);
    Batch::of(prompts).field("chunk", 4).field("metadata", json!({"label": label}))
}

const LATE: Duration = Duration::from_millis(1_300);

async fn no_call_of_a_provider_is_paid_twice_when_it_breaks(kind: Kind) {
    let (world, proxy) = before_the_providers(kind).await;
    let calls = [
        "POST /openai/v1/files",
        "POST /openai/v1/batches",
        "GET /openai/v1/batches/",
        "GET /openai/v1/files/",
        "POST /anthropic/v1/messages/batches",
        "GET /anthropic/v1/messages/batches/",
    ];
    let troubles = [Trouble::CutBefore, Trouble::CutAfter, Trouble::Truncate(70), Trouble::Delay(LATE)];
    let mut all = Vec::new();
    for trouble in troubles {
        for call in calls {
            proxy.make(call, trouble, 1);
        }
        let batch = batch(&format!("{trouble:?}"));
        let object = batch.post(world.client()).await.accepted();
        let told = answered(&world, &batch, id(&object)).await;
        all.push((batch, told));
    }
    assert_eq!(proxy.hits(), (calls.len() * troubles.len()) as u64, "every call met every trouble");
    let prompts: Vec<Prompt> = all.iter().flat_map(|(batch, _)| batch.prompts.clone()).collect();
    assert_eq!(paid(&world).await, Batch::of(prompts).bill(), "what was paid, by body: every question once");
    for (batch, told) in &all {
        again(&world, batch, told).await;
    }
    nothing_is_left_behind(&world).await;
}

async fn an_online_answer_that_is_lost_is_asked_once_more(kind: Kind) {
    let (world, proxy) = before_the_providers(kind).await;
    let ask = "POST /openai/v1/chat/completions";
    proxy.make(ask, Trouble::CutBefore, 2);
    proxy.make(ask, Trouble::CutAfter, 2);
    proxy.make(ask, Trouble::Truncate(200), 1);
    let batch = Batch::of((0..24).map(|n| local(&format!("online {n}"))));
    let object = batch.post(world.client()).await.accepted();
    let told = answered(&world, &batch, id(&object)).await;
    let (paid, bill) = (paid(&world).await, batch.bill());
    let excess = paid.values().sum::<u64>() - bill.values().sum::<u64>();
    assert!(paid.keys().eq(bill.keys()) && (2..=3).contains(&excess), "{excess} more than {} were paid", bill.len());
    again(&world, &batch, &told).await;
    nothing_is_left_behind(&world).await;
}

/// Whatever word of the protocol is cut off, and on whichever side of Redis: what was done is seen, what was not is done.
async fn no_reply_of_redis_is_needed(kind: Kind) {
    let (world, proxy) = before_redis(kind).await;
    let words = ["EXEC", "EVALSHA", "HSET", "ZADD", "MGET", "SET", "WATCH", "HGETALL"];
    for trouble in [Trouble::CutAfter, Trouble::CutBefore, Trouble::Truncate(1)] {
        for word in words {
            // Several connections, and several kinds of work: not the first alone.
            proxy.make(word, trouble, 3);
        }
        let batch = batch(&format!("redis {trouble:?}"));
        let id = stubborn::submit(world.client(), &batch).await;
        until("the batch to end", async || {
            let client = world.client();
            let request = client.request(reqwest::Method::GET, &format!("/batches/{id}"));
            match client.try_send(request).await.map(|reply| reply.json()) {
                Ok(object) if object["status"] == "ended" => Ok(()),
                other => Err(other),
            }
        })
        .await;
        proxy.relent();
        settled(&world, &batch, &id).await;
    }
    assert!(proxy.hits() > 30, "{} requests met trouble", proxy.hits());
    // What broke in the middle of a body is removed once it has been idle for ten minutes.
    time_passes(&world, Duration::from_secs(11 * 60)).await;
    nothing_is_left_behind(&world).await;
}

/// As `settles`, beside other batches of the world.
async fn settled(world: &World, batch: &Batch, id: &str) {
    let told = answered(world, batch, id).await;
    let (paid, bill) = (paid(world).await, batch.bill());
    for (body, times) in bill {
        assert_eq!(paid.get(&body), Some(&times), "every question once");
    }
    again(world, batch, &told).await;
}

async fn a_slow_network_is_no_reason_to_fail(kind: Kind) {
    let slow = Trouble::Trickle(200, Duration::from_millis(5));
    let (world, proxy) = before_the_providers(kind).await;
    proxy.make("HTTP/1.1", slow, u32::MAX);
    let one = batch("slow providers");
    let object = one.post(world.client()).await.accepted();
    settles(&world, &one, id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 4, "nothing was in doubt: one create a chunk");
    nothing_is_left_behind(&world).await;
    drop(world);
    let (world, proxy) = before_redis(kind).await;
    proxy.make("\r\n", Trouble::Delay(Duration::from_millis(15)), u32::MAX);
    let other = batch("slow redis");
    let object = other.post(world.client()).await.accepted();
    settles(&world, &other, id(&object)).await;
    proxy.relent();
    nothing_is_left_behind(&world).await;
}

/// Nobody can renew, commit or be claimed meanwhile; nobody's work is lost or done twice.
async fn redis_stands_still_for_longer_than_a_lease(kind: Kind) {
    let mut world = World::with(kind, &SHORT).await;
    world.start_gateway().await;
    let batch = batch("still").field("chunk", 1);
    let object = batch.post(world.client()).await.accepted();
    for _ in 0..2 {
        until("some chunk to be settled", async || {
            let object = world.client().batch(id(&object)).await;
            if object["chunks"]["settled"].as_u64() >= Some(1) { Ok(()) } else { Err(object) }
        })
        .await;
        world.redis.signal("STOP");
        // Not a wait for anything: so long it stands still.
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.redis.signal("CONT");
    }
    settles(&world, &batch, id(&object)).await;
    nothing_is_left_behind(&world).await;
}
