//! Stored records that nobody can read, one of each kind, in the batches of a world in which another batch runs: that one
//! completes, no loop stops or runs hot, each damage is laid among the dead letters or told to whoever asks, and no answer
//! is wrong.

use crate::support::{
    Batch, Kind, Prompt, World, check,
    check::{paid, right},
    claude,
    client::{JSON, id},
    gpt, until,
};
use serde_json::json;

/// The suite's lease is the least wait before an unreadable record is tried again.
const ENV: &[(&str, &str)] = &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")];

struct Story {
    world: World,
}

impl Story {
    /// Batches that wait at their provider, by name, and no gateway: what is damaged now is read by the next one.
    async fn down(names: &[&str], batch: impl Fn(&str) -> Batch) -> (Story, Vec<String>) {
        let mut world = World::with(Kind::Ours, ENV).await;
        check(&world, &Batch::of([claude("known")])).await;
        let slow = json!({"settings": {"in_progress_s": 1000}});
        world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": slow, "times": 0})).await;
        let mut ids = Vec::new();
        for name in names {
            let object = batch(name).post(world.client()).await.accepted();
            world.running(id(&object), 1).await;
            ids.push(id(&object).to_owned());
        }
        world.kill_gateway();
        until("nobody else to be connected", async || {
            let clients: String = world.redis.command(&["CLIENT", "LIST"]).await;
            if clients.trim().lines().count() == 1 { Ok(()) } else { Err(clients) }
        })
        .await;
        (Story { world }, ids)
    }

    async fn up(&mut self) {
        self.world.sim.clear_faults().await;
        self.world.sim.advance(2000.0).await;
        self.world.start_gateway().await;
    }

    async fn redis(&self, words: &[&str]) {
        self.world.redis.command::<redis::Value>(words).await;
    }

    async fn letters(&self) -> Vec<String> {
        self.world.redis.command(&["LRANGE", "{default}:dead", "0", "-1"]).await
    }

    /// Each of these is laid among the dead letters, and counted.
    async fn laid_down(&self, letters: &[String]) {
        until("the dead letters", async || {
            let found = self.letters().await;
            if letters.iter().all(|letter| found.contains(letter)) { Ok(()) } else { Err(found) }
        })
        .await;
        let counted = self.world.client().metric("batchgate_dead_letters_total").await;
        assert!(counted >= letters.len() as u64, "{counted}");
    }

    /// Another batch completes as if nothing were wrong, the loops go round, and what fails fails seldom.
    async fn all_else_goes_on(&self) {
        let both = |n: usize| [claude(&format!("healthy {n}")), gpt(&format!("healthy {n}"))];
        check(&self.world, &Batch::of((0..6).flat_map(both)).field("chunk", 2)).await;
        let ready = self.world.client().get("/readyz").await;
        assert_eq!(ready.status, 200, "{}", ready.text);
        let list = self.world.client().get("/batches").await.ok();
        assert!(!list["data"].as_array().expect("a list").is_empty(), "{list}");
        let failed = self.failures().await;
        let ticks = self.world.client().metric("batchgate_loop_ticks_total{loop=\"sweep\"}").await;
        until("ten more rounds of the sweeper, half a second each", async || {
            let now = self.world.client().metric("batchgate_loop_ticks_total{loop=\"sweep\"}").await;
            if now >= ticks + 10 { Ok(()) } else { Err(now) }
        })
        .await;
        let more = self.failures().await - failed;
        assert!(more < 25, "{more} failures in five seconds: something runs hot");
    }

    /// Refused, or a stream that is broken off: never one that ends as if it were whole.
    async fn no_whole_answer(&self, path: &str) {
        let client = &self.world.client();
        match client.try_send(client.request(reqwest::Method::GET, path)).await {
            Ok(reply) => drop(reply.refused(503, "unavailable")),
            Err(broken) => assert!(broken.is_decode() || broken.is_body(), "{broken:?}"),
        }
    }

    async fn failures(&self) -> u64 {
        let mut failures = self.world.client().metric("batchgate_steps_failed_total").await;
        for name in ["claim", "seal", "sweep", "reconcile"] {
            failures += self.world.client().metric(&format!("batchgate_loop_errors_total{{loop=\"{name}\"}}")).await;
        }
        failures
    }
}

fn hex(id: &str) -> &str {
    id.trim_start_matches("batch_")
}

fn batch(name: &str) -> Batch {
    Batch::of((0..3).map(|n| claude(&format!("{name} {n}"))))
}

#[tokio::test]
async fn chunks_that_cannot_be_read() {
    let names = ["no lane", "another type", "no lane id", "odd state", "odd deadline", "bytes", "items", "no record"];
    let (mut story, ids) = Story::down(&names, batch).await;
    let chunk = |n: usize| format!("{}.0", hex(&ids[n]));
    let key = |n: usize| format!("{{default}}:k:{}", chunk(n));
    story.redis(&["HDEL", &key(0), "lane"]).await;
    story.redis(&["SET", &key(1), "no hash"]).await;
    story.redis(&["HDEL", &key(2), "lane_id"]).await;
    story.redis(&["HSET", &key(3), "state", "dreaming"]).await;
    story.redis(&["HSET", &key(4), "deadline", "tomorrow", "reclaims", "many"]).await;
    // No UTF-8.
    story.redis(&["EVAL", "return redis.call('HSET', KEYS[1], 'tag', '\\255\\254')", "1", &key(5)]).await;
    story.redis(&["SET", &format!("{}:items", key(6)), "rubbish"]).await;
    story.redis(&["DEL", &key(7)]).await;
    story.up().await;
    let named: Vec<String> = (0..8).map(|n| format!("chunk:{}", chunk(n))).collect();
    story.all_else_goes_on().await;
    story.laid_down(&named).await;
    for id in &ids {
        let object = story.world.client().batch(id).await;
        assert_eq!((&object["status"], &object["counts"]["pending"]), (&json!("running"), &json!(3)), "{object}");
    }
}

#[tokio::test]
async fn pages_that_cannot_be_read() {
    let names = ["manifest", "fragment", "fragments", "another type", "sealed pages"];
    // One prompt of each is known already: its page has a fragment from the start.
    let half = |name: &str| Batch::of((0..3).map(|n| claude(&format!("{name} {n}"))).chain([claude("known")]));
    let (mut story, ids) = Story::down(&names, half).await;
    let key = |n: usize, rest: &str| format!("{{default}}:b:{}:{rest}", hex(&ids[n]));
    story.redis(&["SET", &key(0, "m:0"), "rubbish"]).await;
    story.redis(&["SET", &key(1, "f:0:accept:0"), "rubbish"]).await;
    story.redis(&["HSET", &key(2, "f:0"), "accept", "rubbish"]).await;
    story.redis(&["DEL", &key(3, "f:0:accept:0")]).await;
    story.redis(&["HSET", &key(3, "f:0:accept:0"), "no", "frame"]).await;
    story.redis(&["SET", &key(4, "pages"), "no hash"]).await;
    story.up().await;
    story.all_else_goes_on().await;
    story.laid_down(&(0..5).map(|n| format!("page:{}:0", hex(&ids[n]))).collect::<Vec<_>>()).await;
    for id in &ids {
        let object = story.world.client().batch(id).await;
        assert_eq!((&object["status"], &object["counts"]["pending"]), (&json!("running"), &json!(0)), "{object}");
        story.no_whole_answer(&format!("/batches/{id}/results?partial=true")).await;
    }
    // One that is put right is sealed when its turn comes, which an operator may hasten.
    story.redis(&["DEL", &key(4, "pages")]).await;
    story.redis(&["ZADD", "{default}:seal", "0", &format!("{}:0", hex(&ids[4]))]).await;
    story.world.client().ended(&ids[4]).await;
    right(&half("sealed pages"), &story.world.client().results(&ids[4]).await);
}

/// The bodies are gone before anything was sent: nothing is bought, and after the third try each prompt ends with a reason.
#[tokio::test]
async fn bodies_that_cannot_be_read() {
    let mut world = World::with(Kind::Ours, ENV).await;
    let later = json!({"status": 429, "retry_after": 1});
    for route in ["files.create", "batches.create"] {
        world.sim.fault(json!({"match": {"route": route}, "fault": later, "times": 0})).await;
    }
    let asked: [fn(&str) -> Prompt; 2] = [gpt, claude];
    let lost = asked.map(|ask| Batch::of((0..3).map(|n| ask(&format!("lost {n}")).fails("quarantined"))));
    let mut ids = Vec::new();
    for batch in &lost {
        ids.push(id(&batch.post(world.client()).await.accepted()).to_owned());
    }
    world.kill_gateway();
    for id in &ids {
        world.redis.command::<String>(&["SET", &format!("{{default}}:b:{}:s:0", hex(id)), "rubbish"]).await;
    }
    world.sim.clear_faults().await;
    world.start_gateway().await;
    let story = Story { world };
    story.all_else_goes_on().await;
    story.laid_down(&ids.iter().map(|id| format!("chunk:{}.0", hex(id))).collect::<Vec<_>>()).await;
    let client = story.world.client();
    for (batch, id) in lost.iter().zip(&ids) {
        client.ended(id).await;
        let results = client.results(id).await;
        right(batch, &results);
        let message = results[0]["error"]["message"].as_str().expect("a message");
        assert!(message.contains("nothing was bought"), "{message}");
        // Nobody has the bodies any more: there is nothing to ask again.
        client.retry(id).await.refused(409, "nothing_to_retry");
    }
    let bodies: Vec<String> = lost.iter().flat_map(|batch| batch.bill().into_keys()).collect();
    assert!(paid(&story.world).await.keys().all(|sha| !bodies.contains(sha)), "nothing of them was bought");
}

#[tokio::test]
async fn batches_that_cannot_be_read() {
    let names = ["no total", "another type", "odd counts", "sealed"];
    let (mut story, ids) = Story::down(&names, batch).await;
    let key = |n: usize| format!("{{default}}:b:{}", hex(&ids[n]));
    story.redis(&["HDEL", &key(0), "total"]).await;
    story.redis(&["SET", &key(1), "no hash"]).await;
    story.redis(&["HSET", &key(2), "c_running", "x", "metadata", "[", "terms", "7"]).await;
    story.up().await;
    story.all_else_goes_on().await;
    let named = [0, 1].map(|n| format!("chunk:{}.0", hex(&ids[n])));
    story.laid_down(&named).await;
    for id in &ids[..2] {
        let refused = story.world.client().get(&format!("/batches/{id}")).await.refused(503, "unavailable");
        assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("cannot be read")), "{refused}");
        story.world.client().get(&format!("/batches/{id}/results")).await.refused(503, "unavailable");
        story.world.client().cancel(id).await;
    }
    story.world.client().ended(&ids[2]).await;
    // A sealed page of an ended batch.
    story.world.client().ended(&ids[3]).await;
    let row: String = story.world.redis.command(&["HGET", &format!("{}:pages", key(3)), "0"]).await;
    let (name, _) = row.split_once(':').expect("a name and a count");
    story.redis(&["SET", &format!("{}:p:0:{name}:0", key(3)), "rubbish"]).await;
    story.no_whole_answer(&format!("/batches/{}/results", ids[3])).await;
}

#[tokio::test]
async fn queues_accounts_and_keys_that_cannot_be_read() {
    let (mut story, ids) = Story::down(&["waits"], batch).await;
    for queue in ["seal", "chores", "delayed", "claimed", "open"] {
        story.redis(&["ZADD", &format!("{{default}}:{queue}"), "1", &format!("rubbish in {queue}")]).await;
    }
    let upload = "01a22dab39cf7115a208629225567218";
    story.redis(&["ZADD", "{default}:chores", "1", &format!("upload:{upload}")]).await;
    story.redis(&["SET", &format!("{{default}}:u:{upload}"), "no hash"]).await;
    story.redis(&["SET", "{acct:anthropic}:gate", "rubbish"]).await;
    story.redis(&["HSET", "{acct:openai}:gate", "no", "text"]).await;
    story.redis(&["SET", "{acct:anthropic}:tokens:claude-haiku-4-5", "1{"]).await;
    story.redis(&["SET", "{acct:openai}:tokens:gpt-5-mini", "9{}"]).await;
    story.redis(&["HSET", "{default}:reconciler", "rank", "first"]).await;
    story.up().await;
    story.all_else_goes_on().await;
    let mut letters: Vec<String> = ["seal", "chores"].map(|queue| format!("rubbish in {queue}")).into();
    letters.extend(["delayed", "claimed"].map(|queue| format!("chunk:rubbish in {queue}")));
    letters.extend([format!("chore:upload:{upload}"), "{acct:openai}:gate".to_owned()]);
    story.laid_down(&letters).await;
    story.world.client().ended(&ids[0]).await;
    // An Idempotency-Key whose record cannot be read: nobody knows whether its batch exists, so none is made.
    let send = async |key: &str| {
        let client = story.world.client();
        let (_, body) = batch("once").body();
        let request = client.request(reqwest::Method::POST, "/batches").header("content-type", JSON);
        client.send(request.header("idempotency-key", key).body(body)).await
    };
    let object = send("mine").await.accepted();
    story.world.client().ended(id(&object)).await;
    let records: Vec<String> = story.world.redis.command(&["KEYS", "{default}:i:*"]).await;
    story.redis(&["SET", &records[0], "rubbish"]).await;
    send("mine").await.refused(503, "unavailable");
    assert_eq!(send("another").await.status, 202);
}
