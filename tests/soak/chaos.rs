//! What happens to the world: gateways and Redis die, stand still or are told to stop; providers and networks misbehave.

use crate::{
    history::History,
    support::{
        Kind, World,
        client::Client,
        proxy::{Behind, Proxy, Trouble},
        until,
    },
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Requests the online server gets at once from each gateway.
pub(crate) const CONCURRENCY: u64 = 4;
const GATEWAYS: usize = 2;
/// Longer than the lease of two seconds.
const STALL: Duration = Duration::from_millis(3_500);

/// Clients of the gateways as they are now.
pub(crate) type Doors = Arc<Mutex<Vec<Client>>>;

pub(crate) struct Chaos {
    pub(crate) world: World,
    pub(crate) doors: Doors,
    rng: StdRng,
    history: History,
    providers: Proxy,
    redis: Proxy,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    KillGateway,
    StallGateway,
    StopGateway,
    KillRedis,
    StallRedis,
    Fault,
    CutProvider,
    CutRedis,
}

/// How often each happens.
const ACTS: [(Act, u32); 8] = [
    (Act::KillGateway, 30),
    (Act::StallGateway, 6),
    (Act::StopGateway, 6),
    (Act::KillRedis, 8),
    (Act::StallRedis, 4),
    (Act::Fault, 26),
    (Act::CutProvider, 12),
    (Act::CutRedis, 8),
];

impl Chaos {
    pub(crate) async fn begin(kind: Kind, seed: u64, history: History) -> Chaos {
        let settings = [
            ("BATCHGATE_LEASE", "2s"),
            ("BATCHGATE_STALL", "1s"),
            ("BATCHGATE_ATTEMPTS", "50"),
            ("BATCHGATE_POLL_MAX", "2s"),
            ("BATCHGATE_LOG", "info"),
        ];
        let mut world = World::empty(kind, &settings).await;
        let providers = Proxy::before(Behind::Tcp(world.sim.address())).await;
        let redis = Proxy::before(Behind::Unix(world.redis.socket())).await;
        world.set("BATCHGATE_REDIS_URL", format!("redis://{}", redis.address));
        let base = format!("http://{}", providers.address);
        world.configure(&format!(
            "[[providers]]\nname = \"anthropic\"\nkind = \"anthropic-batch\"\nbase_url = \"{base}/anthropic\"\n\
             api_key_env = [\"ANTHROPIC_API_KEY\"]\n\n\
             [[providers]]\nname = \"openai\"\nkind = \"openai-batch\"\nbase_url = \"{base}/openai/v1\"\n\
             api_key_env = [\"OPENAI_API_KEY\"]\n\n\
             [[providers]]\nname = \"local\"\nkind = \"openai-online\"\nbase_url = \"{base}/openai/v1\"\n\
             api_key_env = [\"OPENAI_API_KEY\"]\nmodels = [\"local-*\"]\nconcurrency = {CONCURRENCY}\n"
        ));
        let mut chaos =
            Chaos { world, doors: Doors::default(), rng: StdRng::seed_from_u64(seed), history, providers, redis };
        for _ in 0..GATEWAYS {
            chaos.world.start_gateway().await;
        }
        chaos.open_doors();
        chaos
    }

    fn open_doors(&self) {
        let clients = self.world.gateways.iter().map(|gateway| gateway.client.clone()).collect();
        *self.doors.lock().expect("nobody panics with it") = clients;
    }

    /// One thing after another until the time is over.
    pub(crate) async fn rage(&mut self, over: Instant) {
        let acts: Vec<Act> = ACTS.iter().flat_map(|(act, times)| std::iter::repeat_n(*act, *times as usize)).collect();
        while Instant::now() < over {
            // Not a wait for anything: the pace of the chaos.
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(200..2_000))).await;
            let act = *acts.choose(&mut self.rng).expect("there are some");
            self.act(act).await;
        }
    }

    async fn act(&mut self, act: Act) {
        match act {
            Act::KillGateway => {
                self.history.note("kill -9 of a gateway");
                self.history.count(|tally| tally.kills += 1);
                self.replace().await;
            }
            Act::StopGateway => {
                self.history.note("a gateway is told to stop, and killed if it takes its time");
                self.history.count(|tally| tally.stops += 1);
                self.world.gateways[0].process.signal("TERM");
                let until = Instant::now() + Duration::from_secs(self.rng.random_range(1..8));
                while Instant::now() < until && self.world.gateways[0].process.ended().is_none() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                self.replace().await;
            }
            Act::StallGateway => {
                let at = self.rng.random_range(0..self.world.gateways.len());
                self.history.note("a gateway stands still");
                self.history.count(|tally| tally.stalls += 1);
                self.world.gateways[at].process.signal("STOP");
                tokio::time::sleep(STALL).await;
                self.world.gateways[at].process.signal("CONT");
                self.history.note("the gateway wakes");
            }
            Act::KillRedis => {
                self.history.note("kill -9 of redis");
                self.history.count(|tally| tally.redis_kills += 1);
                self.world.redis.kill();
                tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..1_500))).await;
                self.world.redis.restart().await;
                self.history.note("redis is back");
            }
            Act::StallRedis => {
                self.history.note("redis stands still");
                self.history.count(|tally| tally.stalls += 1);
                self.world.redis.signal("STOP");
                tokio::time::sleep(STALL).await;
                self.world.redis.signal("CONT");
            }
            Act::Fault => {
                let rule = self.rule();
                self.history.note(format!("a fault at the providers: {rule}"));
                self.history.count(|tally| tally.faults += 1);
                self.world.sim.fault(rule).await;
            }
            Act::CutProvider => {
                let calls = [
                    "POST /anthropic/",
                    "GET /anthropic/",
                    "POST /openai/v1/files",
                    "POST /openai/v1/batches",
                    "GET /openai/",
                    "POST /openai/v1/chat",
                ];
                let (needle, trouble) = (*calls.choose(&mut self.rng).expect("some"), self.trouble());
                self.history.note(format!("{trouble:?} of {needle}"));
                self.providers.make(needle, trouble, self.rng.random_range(1..4));
            }
            Act::CutRedis => {
                let words = ["EXEC", "EVALSHA", "HSET", "ZADD", "MGET", "WATCH", "HGETALL"];
                let (needle, trouble) = (*words.choose(&mut self.rng).expect("some"), self.trouble());
                self.history.note(format!("{trouble:?} of redis {needle}"));
                self.redis.make(needle, trouble, self.rng.random_range(1..6));
            }
        }
    }

    /// Another gateway takes the place of the first.
    async fn replace(&mut self) {
        self.world.kill_gateway();
        self.open_doors();
        tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..1_000))).await;
        self.world.start_gateway().await;
        self.open_doors();
    }

    fn trouble(&mut self) -> Trouble {
        match self.rng.random_range(0..6) {
            0 | 1 => Trouble::CutAfter,
            2 => Trouble::CutBefore,
            3 => Trouble::Truncate(self.rng.random_range(1..300)),
            4 => Trouble::Trickle(100, Duration::from_millis(5)),
            _ => Trouble::Delay(Duration::from_millis(self.rng.random_range(100..1_500))),
        }
    }

    /// A fault that costs nobody an answer twice: of an online server, what is counted apart.
    fn rule(&mut self) -> Value {
        let faults = [
            json!({"status": 429, "retry_after": 1}),
            json!({"status": 500}),
            json!({"status": 529}),
            json!({"status": 503, "after": true}),
            json!({"status": 401}),
            json!({"html": true, "status": 502}),
            json!({"delay": 1.5}),
            json!({"delay_after": 0.7}),
            json!({"reset": "before"}),
            json!({"reset": "after"}),
            json!({"truncate": {"fraction": 0.4, "framing": "length"}}),
            json!({"truncate": {"fraction": 0.7, "framing": "chunked"}}),
            json!({"trickle": {"bytes": 2000, "every": 0.05}}),
        ];
        let spoils = [
            json!({"duplicate": 5}),
            json!({"conflict": 3}),
            json!({"unknown_id": 3}),
            json!({"blank": 3}),
            json!({"crlf": true}),
        ];
        let routes = [
            "batches.create",
            "batches.create",
            "batches.get",
            "batches.list",
            "batches.results",
            "batches.cancel",
            "files.create",
            "files.content",
            "chat.completions",
        ];
        let times = self.rng.random_range(1..5);
        if self.rng.random_bool(0.2) {
            let results = spoils.choose(&mut self.rng).expect("some");
            return json!({"match": {"route": "batches.create"}, "fault": {"results": results}, "times": times});
        }
        let route = *routes.choose(&mut self.rng).expect("some");
        let fault = faults.choose(&mut self.rng).expect("some");
        json!({"match": {"route": route}, "fault": fault, "times": times})
    }

    /// No more of it: everything works again.
    pub(crate) async fn calm(&mut self) {
        self.providers.relent();
        self.redis.relent();
        self.world.sim.clear_faults().await;
        self.history.count(|tally| tally.cuts += self.providers.hits() + self.redis.hits());
        self.history.note("calm");
        for gateway in &self.world.gateways {
            until("every gateway to be ready", async || {
                match gateway.client.try_send(gateway.client.request(reqwest::Method::GET, "/readyz")).await {
                    Ok(ready) if ready.status == 200 => Ok(()),
                    other => Err(other),
                }
            })
            .await;
        }
    }
}
