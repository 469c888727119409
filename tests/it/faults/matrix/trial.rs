//! One combination: a world of its own, the point tripped in it, and everything that must hold afterwards.

use super::{Asked, Combination, Mode, Story, ratchet};
use crate::support::{
    Batch, Kind, Prompt, World, again,
    check::{answered, paid},
    claude,
    client::{NDJSON, count, id},
    gateway::Gateway,
    gpt,
    leftovers::time_passes,
    local::local,
    nothing_is_left_behind,
    stubborn::Wish,
    until,
    wait::within,
};
use batchgate::failpoint;
use reqwest::Method;
use serde_json::json;
use std::time::{Duration, Instant};

/// Requests an online server gets at once: what one death may cost.
const CONCURRENCY: u64 = 4;
/// Batches until the point must have been met.
const ROUNDS: usize = 4;
/// Long enough that a busy machine loses no claim, short enough that what a dead gateway held is free soon.
const SETTINGS: [(&str, &str); 2] = [("BATCHGATE_LEASE", "2s"), ("BATCHGATE_STALL", "1s")];

struct Trial {
    combination: Combination,
    world: World,
    /// The armed gateway, once it is gone. Before that it is the first of the world.
    dead: Option<Gateway>,
    prompts: usize,
    /// What was sent, and under which id it exists.
    sent: Vec<(Batch, String)>,
}

pub(super) async fn run(combination: Combination, sim: Kind, prompts: usize) {
    let mut trial = Trial::start(combination, sim, prompts).await;
    trial.meet().await;
    trial.aftermath().await;
    trial.verdict().await;
}

impl Trial {
    async fn start(combination: Combination, sim: Kind, prompts: usize) -> Trial {
        let mut world = World::empty(sim, &SETTINGS).await;
        let (anthropic, openai) = (world.sim.anthropic(), world.sim.openai());
        let account = |name: &str, kind: &str, url: &str, key: &str, more: &str| {
            format!(
                "[[providers]]\nname = \"{name}\"\nkind = \"{kind}\"\nbase_url = \"{url}\"\napi_key_env = [\"{key}\"]\n{more}\n"
            )
        };
        let online = format!("models = [\"local-*\"]\nconcurrency = {CONCURRENCY}");
        world.configure(
            &[
                account("anthropic", "anthropic-batch", &anthropic, "ANTHROPIC_API_KEY", ""),
                account("openai", "openai-batch", &openai, "OPENAI_API_KEY", ""),
                account("local", "openai-online", &openai, "OPENAI_API_KEY", &online),
            ]
            .concat(),
        );
        let mut mode = combination.mode.word();
        if ratchet::known_broken(&combination).is_some() {
            mode = ratchet::STALL;
            world.sim.take(ratchet::TAKES).await;
        }
        let armed = format!("{}={mode}", combination.seam.point);
        let mut own = vec![(failpoint::VARIABLE, armed.as_str())];
        if combination.seam.story == Story::Retry {
            own.push(("BATCHGATE_ATTEMPTS", "1"));
        }
        world.start_gateway_with(&own).await;
        if combination.gateways == 2 {
            world.start_gateway_with(&own[1..]).await;
        }
        Trial { combination, world, dead: None, prompts, sent: Vec::new() }
    }

    // The way to the point.

    /// Sends batches until the point has tripped. From the second round on, and wherever there is but one chance, the other
    /// gateway sleeps until then.
    async fn meet(&mut self) {
        let story = self.combination.seam.story;
        let once = matches!(story, Story::Doubt | Story::Cancel | Story::Stop | Story::Retry);
        for round in 0..ROUNDS {
            let alone = once || round > 0;
            if alone {
                self.other("STOP");
            }
            self.round(round).await;
            let met = self.met().await;
            if alone {
                self.other("CONT");
            }
            if met {
                return;
            }
        }
        panic!("{:?} was not met in {ROUNDS} batches", self.combination);
    }

    /// Puts the gateway that is not armed to sleep, or wakes it.
    fn other(&self, signal: &str) {
        if self.combination.gateways == 2 {
            self.world.gateways.last().expect("it outlives the armed one").process.signal(signal);
        }
    }

    async fn round(&mut self, round: usize) {
        match self.combination.seam.story {
            Story::Batch | Story::LargeChunk => drop(self.submit(self.batch(round)).await),
            Story::Join => {
                self.world.sim.take(1.0).await;
                let batch = self.batch(round);
                self.submit(batch.clone()).await;
                self.submit(batch).await;
            }
            Story::Run => {
                let named = |(n, prompt): (usize, Prompt)| prompt.named(&format!("n{n}"));
                let mut batch = self.batch(round);
                batch.prompts = batch.prompts.into_iter().enumerate().map(named).collect();
                let bad = json!({"custom_id": "bad", "messages": 5});
                batch.prompts.push(Prompt::new(bad, json!({})).fails("invalid_request"));
                self.submit(batch.field("run", format!("matrix~{round}")).field("on_invalid", "fail")).await;
            }
            Story::Refused => {
                let mut batch = self.batch(round).field("run", format!("matrix~{round}")).ndjson();
                let mut good = batch.clone();
                good.prompts = vec![batch.prompts[0].clone().named("same")];
                batch.prompts.push(Prompt::new(json!(5), json!({})));
                self.refused(&batch).await;
                let drawn = self.submit(good).await;
                let told = self.world.client().batch(&drawn).await;
                assert_eq!(told["counts"]["repeats"], 0, "what the refused one drew is free again: {told}");
            }
            Story::Retry => {
                let mut batch = self.batch(round);
                batch.prompts.truncate(self.prompts);
                batch.prompts.extend((0..8).map(|n| self.prompt(&format!("[[flaky:1]] {n}")).fails("server_error")));
                let old = self.submit(batch).await;
                self.world.client().ended(&old).await;
                self.retry(&old).await;
            }
            Story::Doubt => {
                let lost = json!({"match": {"route": "batches.create"}, "fault": {"reset": "after"}, "times": 1});
                self.world.sim.fault(lost).await;
                self.submit(self.batch(round)).await;
            }
            Story::Cancel | Story::Stop => {
                self.world.sim.take(5.0).await;
                let slow = json!({"match": {"route": "chat.completions"}, "fault": {"delay_after": 0.3}, "times": 0});
                self.world.sim.fault(slow).await;
                let id = self.submit(self.batch(round)).await;
                self.under_way(&id).await;
                if self.combination.seam.story == Story::Cancel {
                    self.cancel(&id).await;
                } else {
                    self.world.gateways[0].process.signal("TERM");
                }
            }
        }
    }

    /// Different prompts in each round: good ones, one twice, one that fails, one that fails at first.
    fn batch(&self, round: usize) -> Batch {
        let (count, chunk) = match self.combination.seam.story {
            Story::LargeChunk => (620, 1_000),
            Story::Refused => (520, 1_000), // more than a page
            _ => (self.prompts, self.prompts.div_ceil(4)),
        };
        let mut prompts: Vec<Prompt> = (0..count).map(|n| self.prompt(&format!("round {round}, {n}"))).collect();
        prompts.push(prompts[0].clone());
        prompts.push(self.prompt(&format!("[[error:invalid_request]] {round}")).fails("invalid_request"));
        if self.combination.seam.story != Story::Retry {
            prompts.push(self.prompt(&format!("[[flaky:1]] {round}")));
        }
        Batch::of(prompts).field("chunk", chunk).field("metadata", json!({"label": round.to_string()}))
    }

    fn prompt(&self, text: &str) -> Prompt {
        match self.combination.asked {
            Asked::Anthropic => claude(text),
            Asked::OpenAi => gpt(text),
            Asked::Online => local(text),
        }
    }

    /// Until something of the batch is at its provider.
    async fn under_way(&self, id: &str) {
        until("something to be under way", async || {
            let (object, paid) = (self.world.client().batch(id).await, paid(&self.world).await);
            let running = object["chunks"]["running"].as_u64() > Some(0);
            if running && (self.combination.asked != Asked::Online || !paid.is_empty()) { Ok(()) } else { Err(object) }
        })
        .await;
    }

    // What a client does whose gateway may die at any time.

    async fn submit(&mut self, batch: Batch) -> String {
        let id = self.post(Wish::of(&batch)).await;
        self.sent.push((batch, id.clone()));
        id
    }

    /// Asks again what a batch left unanswered, until that exists.
    async fn retry(&mut self, old: &str) {
        let (path, listed) = (format!("/batches/{old}/retry"), "?limit=1".to_owned());
        let id = self.post(Wish { path, body: None, listed, known: &[old.to_owned()] }).await;
        self.sent.push((Batch::of((0..8).map(|n| self.prompt(&format!("[[flaky:1]] {n}")))), id));
    }

    /// Sends until it exists; a gateway that died is replaced.
    async fn post(&mut self, wish: Wish<'_>) -> String {
        for _ in 0..20 {
            let client = self.world.client().clone();
            if let Some(id) = wish.send(&client).await {
                return id;
            }
            self.revive().await;
            if let Some(id) = wish.look(self.world.client()).await {
                return id;
            }
        }
        panic!("{:?}: POST {} comes to nothing", self.combination, wish.path);
    }

    async fn refused(&mut self, batch: &Batch) {
        let (kind, body) = batch.body();
        assert_eq!(kind, NDJSON, "it is read in one pass");
        let client = self.world.client().clone();
        let request = client.request(Method::POST, "/batches").header("content-type", kind).body(body);
        if let Ok(reply) = client.try_send(request).await {
            reply.refused(422, "invalid_request");
        }
        self.revive().await;
    }

    async fn cancel(&mut self, id: &str) {
        let client = self.world.client().clone();
        let sent = client.try_send(client.request(Method::POST, &format!("/batches/{id}/cancel"))).await;
        if !sent.is_ok_and(|reply| reply.status == 200) {
            self.revive().await;
            self.world.client().cancel(id).await.ok();
        }
    }

    /// An orchestrator: a gateway that is gone is replaced, if no other is there.
    async fn revive(&mut self) {
        if self.dead.is_none() && self.is_dying() {
            let process = &mut self.world.gateways[0].process;
            within(Duration::from_secs(40), "the gateway to end", async || process.ended().ok_or("it runs")).await;
            self.dead = Some(self.world.gateways.remove(0));
        }
        if self.world.gateways.is_empty() {
            self.world.start_gateway().await;
        }
        self.other("CONT");
    }

    /// Has it come to the armed gateway's end?
    fn is_dying(&mut self) -> bool {
        let ends = self.combination.mode == Mode::Exit && self.tripped();
        ends || self.world.gateways[0].process.ended().is_some()
    }

    // The point.

    fn armed(&self) -> &Gateway {
        self.dead.as_ref().unwrap_or_else(|| &self.world.gateways[0])
    }

    fn tripped(&self) -> bool {
        self.armed().process.said().contains("fail point tripped")
    }

    /// Waits until the point has tripped, or all was done without it.
    async fn met(&mut self) -> bool {
        let began = Instant::now();
        let mut minutes = 0;
        while !self.tripped() {
            if !self.all_ended().await {
                assert!(began.elapsed() < Duration::from_secs(90), "{:?}: nothing happens any more", self.combination);
            } else if minutes < 40 {
                // What is left to do is the sweeper's.
                time_passes(&self.world, Duration::from_secs(60)).await;
                minutes += 1;
            } else {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        true
    }

    /// False also where nobody can say: a gateway may be dying.
    async fn all_ended(&self) -> bool {
        for (_, id) in &self.sent {
            let client = self.world.client();
            let looked = client.try_send(client.request(Method::GET, &format!("/batches/{id}"))).await;
            if !looked.is_ok_and(|reply| reply.status == 200 && reply.json()["status"] == "ended") {
                return false;
            }
        }
        true
    }

    /// What follows by itself: the dead is replaced, the sleeper wakes.
    async fn aftermath(&mut self) {
        self.world.sim.clear_faults().await;
        let Combination { mode, seam, .. } = self.combination;
        if mode == Mode::Stall {
            within(Duration::from_secs(20), "the sleeper to wake", async || {
                let said = self.armed().process.said();
                if said.contains("awake again") { Ok(()) } else { Err(said) }
            })
            .await;
        }
        if seam.story == Story::Stop && self.dead.is_none() {
            let process = &mut self.world.gateways[0].process;
            within(Duration::from_secs(40), "the gateway to end", async || process.ended().ok_or("it runs")).await;
        }
        self.revive().await;
    }

    // What must hold.

    async fn verdict(&mut self) {
        let (world, combination) = (&self.world, self.combination);
        let mut told = Vec::new();
        for (batch, id) in &self.sent {
            if combination.seam.story == Story::Cancel {
                self.canceled(batch, id).await;
            } else {
                told.push(answered(world, batch, id).await);
            }
        }
        self.bill_is_right().await;
        for ((batch, _), told) in self.sent.iter().zip(&told) {
            if combination.seam.story != Story::Retry {
                again(world, batch, told).await;
            }
        }
        if combination.seam.story == Story::Retry {
            // What failed at first is answered now: the same prompts once more are all in the cache.
            let (mut batch, answers) = (self.sent[0].0.clone(), self.sent[1].0.clone());
            batch.prompts.truncate(batch.prompts.len() - 8);
            batch.prompts.extend(answers.prompts);
            let object = batch.post(world.client()).await.accepted();
            let first = answered(world, &batch, id(&object)).await;
            again(world, &batch, &first).await;
        }
        time_passes(world, Duration::from_secs(11 * 60)).await;
        nothing_is_left_behind(world).await;
    }

    /// Each question was paid for once; of an online server at most what was in the air once more.
    async fn bill_is_right(&self) {
        let every = if self.combination.seam.story == Story::Join { 2 } else { 1 }; // the second asks nothing of its own
        let batches = self.sent.iter().step_by(every).map(|(batch, _)| batch.prompts.clone());
        let mut all: Vec<Prompt> = batches.flatten().collect();
        if self.combination.seam.story == Story::Retry {
            all.retain(Prompt::succeeds);
        }
        let (paid, bill) = (paid(&self.world).await, Batch::of(all).bill());
        if self.combination.asked == Asked::Online {
            let (asked, due): (u64, u64) = (paid.values().sum(), bill.values().sum());
            let most = if self.combination.seam.story == Story::Cancel { 0 } else { due };
            assert!(asked >= most && asked <= due + CONCURRENCY, "{asked} were paid for {due} questions");
            assert!(paid.iter().all(|(sha, times)| bill.get(sha).is_some_and(|due| *times <= due + 1)), "{paid:?}");
        } else if self.combination.seam.story == Story::Cancel {
            assert!(paid.iter().all(|(sha, times)| bill.get(sha).is_some_and(|due| times <= due)), "{paid:?}");
        } else {
            assert_eq!(paid, bill, "{:?}: what was paid, by body", self.combination);
        }
    }

    /// What was answered is right and kept; the rest is canceled; and sent again, only that is bought.
    async fn canceled(&self, batch: &Batch, id: &str) {
        let world = &self.world;
        let object = world.client().ended(id).await;
        let results = world.client().results(id).await;
        assert_eq!(results.len(), batch.prompts.len());
        for (prompt, result) in batch.prompts.iter().zip(&results) {
            let canceled = result["status"] == "canceled" && result["error"]["code"] == "canceled";
            assert!(
                canceled || result["status"] == "failed" || result["completion"] == json!(prompt.echo()),
                "{result}"
            );
        }
        let (kept, bought) = (count(&object, "succeeded"), paid(world).await.values().sum::<u64>());
        let lost = if self.combination.asked == Asked::Online { CONCURRENCY } else { 0 };
        assert!((kept..=kept + lost).contains(&bought), "what was paid is kept: {bought} of {object}");
        world.sim.take(0.2).await;
        let again = batch.post(world.client()).await.accepted();
        let told = answered(world, batch, crate::support::client::id(&again)).await;
        assert_eq!(count(&told.object, "cached"), kept, "what was answered is in the cache: {}", told.object);
        crate::support::again(world, batch, &told).await;
    }
}
