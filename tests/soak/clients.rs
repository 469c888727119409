//! Clients of the gateways: each sends one batch after another, watches it, cancels some, and sends some again. Now and
//! then it asks what another client has under way.

use crate::{
    chaos::{Chaos, Doors},
    history::History,
    support::{
        Batch, Prompt, check, claude,
        client::{Client, Reply, adds_up, id, lines},
        gpt,
        local::local,
    },
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use reqwest::Method;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;

const CLIENTS: u64 = 6;
/// Most prompts a client takes from another's batch.
const OVERLAP: usize = 1_000;
/// No new batch this shortly before the end of the chaos.
const LAST: Duration = Duration::from_secs(15);
/// Once the chaos is over a batch must end within this.
const STUCK: Duration = Duration::from_secs(180);

/// A batch that has ended.
pub(crate) struct Sent {
    pub(crate) batch: Batch,
    pub(crate) label: String,
    pub(crate) id: String,
    pub(crate) canceled: bool,
    pub(crate) results: Vec<Value>,
}

pub(crate) fn start(chaos: &Chaos, seed: u64, over: Instant, history: &History) -> Vec<JoinHandle<Vec<Sent>>> {
    let in_flight = Asked::default();
    let client = |number| Sender {
        number,
        rng: StdRng::seed_from_u64(seed ^ (number << 32)),
        doors: Doors::clone(&chaos.doors),
        over,
        history: history.clone(),
        in_flight: Asked::clone(&in_flight),
        sent: Vec::new(),
    };
    (1..=CLIENTS).map(|number| tokio::spawn(client(number).run())).collect()
}

/// What each client asked last: others may ask it, too, while it is under way.
type Asked = Arc<Mutex<BTreeMap<u64, Vec<Prompt>>>>;

struct Sender {
    number: u64,
    rng: StdRng,
    doors: Doors,
    over: Instant,
    history: History,
    in_flight: Asked,
    sent: Vec<Sent>,
}

impl Sender {
    async fn run(mut self) -> Vec<Sent> {
        while Instant::now() + LAST < self.over {
            let (batch, label) = self.batch();
            self.history.count(|tally| {
                tally.batches += 1;
                tally.prompts += batch.prompts.len() as u64;
            });
            let id = self.submit(&batch, &label).await;
            let canceled = self.rng.random_bool(0.15);
            if canceled {
                // Not a wait for anything: the moment of the cancel is what varies.
                tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..4_000))).await;
                self.cancel(&id, &label).await;
            }
            self.ended(&id, &label).await;
            let results = self.results(&id).await;
            self.history.note_of(&label, "read");
            if !canceled {
                let judged = (batch.clone(), results.clone());
                let right = tokio::spawn(async move { check::right(&judged.0, &judged.1) }).await;
                if let Err(wrong) = right {
                    self.history.tell(&label);
                    panic!("{label} ({id}): {wrong}");
                }
            }
            self.sent.push(Sent { batch, label, id, canceled, results });
        }
        self.sent
    }

    /// Prompts for one or several models; some that fail, some that fail at first, some twice; or an earlier batch once
    /// more with a few new ones.
    fn batch(&mut self) -> (Batch, String) {
        let label = format!("client {}, batch {}", self.number, self.sent.len());
        let mut prompts: Vec<Prompt> = match self.sent.choose(&mut self.rng) {
            Some(old) if self.rng.random_bool(0.2) => old.batch.prompts.clone(),
            _ => Vec::new(),
        };
        if self.rng.random_bool(0.3) {
            let asked = self.in_flight.lock().expect("nobody panics with it");
            let others: Vec<&Vec<Prompt>> = asked.values().collect();
            prompts.extend(
                others.choose(&mut self.rng).into_iter().flat_map(|others| others.iter().take(OVERLAP).cloned()),
            );
        }
        let most = if self.rng.random_bool(0.2) { 5_000 } else { 1_200 };
        let count = self.rng.random_range(20..most);
        let models: &[fn(&str) -> Prompt] = match self.rng.random_range(0..5) {
            0 => &[claude],
            1 => &[gpt],
            2 => &[local],
            3 => &[claude, gpt],
            _ => &[claude, gpt, local],
        };
        let slow = models == [local as fn(&str) -> Prompt];
        for n in 0..if slow { count / 4 } else { count } {
            let make = models.choose(&mut self.rng).expect("some");
            prompts.push(match self.rng.random_range(0..60) {
                0 => make(&format!("[[error:invalid_request]] {label}, {n}")).fails("invalid_request"),
                1 => make(&format!("[[flaky:2]] {label}, {n}")),
                2 if n > 0 => prompts[prompts.len() - 1].clone(),
                _ => make(&format!("{label}, {n}")),
            });
        }
        self.in_flight.lock().expect("nobody panics with it").insert(self.number, prompts.clone());
        let chunk = self.rng.random_range(20..400);
        (Batch::of(prompts).field("chunk", chunk).ndjson(), label)
    }

    fn door(&mut self) -> Option<Client> {
        self.doors.lock().expect("nobody panics with it").choose(&mut self.rng).cloned()
    }

    /// One answer, from whichever gateway is there.
    async fn ask(&mut self, request: impl Fn(&Client) -> reqwest::RequestBuilder) -> Option<Reply> {
        let door = self.door()?;
        let reply = door.try_send(request(&door).timeout(Duration::from_secs(30))).await.ok();
        if reply.as_ref().is_none_or(|reply| reply.status >= 400) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        reply
    }

    /// Under one Idempotency-Key, until there is an answer: the lock of a dead gateway lapses after 90 s.
    async fn submit(&mut self, batch: &Batch, label: &str) -> String {
        let (kind, body) = batch.body();
        self.history.note_of(label, format!("{} prompts are sent", batch.prompts.len()));
        let began = Instant::now();
        loop {
            let send = |client: &Client| {
                let request = client.request(Method::POST, "/batches").header("idempotency-key", label);
                request.header("content-type", kind).body(body.clone())
            };
            match self.ask(send).await {
                Some(reply) if reply.status == 202 => {
                    let id = id(&reply.accepted()).to_owned();
                    self.history.note_of(label, format!("accepted as {id}"));
                    return id;
                }
                Some(reply) => {
                    assert!([409, 429, 503].contains(&reply.status), "{label}: {}", reply.text);
                    self.history.note_of(label, format!("refused: {}", reply.json()["code"]));
                }
                None => self.history.note_of(label, "no answer to the POST"),
            }
            self.patience(began, label, "is not accepted");
        }
    }

    async fn cancel(&mut self, id: &str, label: &str) {
        self.history.note_of(label, "cancelled");
        self.history.count(|tally| tally.cancels += 1);
        let path = format!("/batches/{id}/cancel");
        // 409: it had ended before.
        while !self
            .ask(|client| client.request(Method::POST, &path))
            .await
            .is_some_and(|reply| [200, 409].contains(&reply.status))
        {}
    }

    async fn ended(&mut self, id: &str, label: &str) {
        let (path, began) = (format!("/batches/{id}?wait=1"), Instant::now());
        loop {
            if let Some(reply) = self.ask(|client| client.request(Method::GET, &path)).await
                && reply.status == 200
            {
                let object = reply.json();
                adds_up(&object);
                if object["status"] == "ended" {
                    self.history.note_of(label, format!("ended: {}", object["counts"]));
                    return;
                }
                self.patience(began, label, &format!("does not end: {object}"));
            }
            self.patience(began, label, "cannot be read");
        }
    }

    /// Nothing may be stuck once there is nothing left to wait for.
    fn patience(&self, began: Instant, label: &str, why: &str) {
        if began.max(self.over).elapsed() > STUCK {
            self.history.tell(label);
            panic!("{label} {why}, {STUCK:?} after the chaos was over");
        }
    }

    async fn results(&mut self, id: &str) -> Vec<Value> {
        let path = format!("/batches/{id}/results");
        loop {
            if let Some(reply) = self.ask(|client| client.request(Method::GET, &path)).await
                && reply.status == 200
            {
                return lines(&reply.text);
            }
        }
    }
}
