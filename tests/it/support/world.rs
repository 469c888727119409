//! One world per story: a Redis, a simulator, one or more gateways. Everything dies with it.

use super::{
    client::Client,
    dir::Dir,
    gateway::{self, Env, Gateway},
    redis::Redis,
    sim::{Kind, Sim},
    wait,
};
use tokio::{io::AsyncWriteExt, net::TcpStream};

pub(crate) struct World {
    // In the order in which they die: who uses goes before what is used.
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) sim: Sim,
    pub(crate) redis: Redis,
    env: Env,
    started: usize,
    pub(crate) dir: Dir,
}

impl World {
    /// One gateway with the suite's settings.
    pub(crate) async fn new(kind: Kind) -> World {
        World::with(kind, &[]).await
    }

    /// One gateway with these settings over the suite's.
    pub(crate) async fn with(kind: Kind, env: &[(&str, &str)]) -> World {
        let mut world = World::empty(kind, env).await;
        world.start_gateway().await;
        world
    }

    /// No gateway yet.
    pub(crate) async fn empty(kind: Kind, env: &[(&str, &str)]) -> World {
        let dir = Dir::new();
        let redis = Redis::start(dir.path()).await;
        World::on(dir, redis, kind, env).await
    }

    /// No gateway yet, and a Redis Cluster.
    pub(crate) async fn clustered(kind: Kind) -> World {
        let dir = Dir::new();
        let redis = Redis::cluster(dir.path()).await;
        World::on(dir, redis, kind, &[]).await
    }

    async fn on(dir: Dir, redis: Redis, kind: Kind, env: &[(&str, &str)]) -> World {
        let sim = Sim::start(kind, dir.path()).await;
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        World { gateways: Vec::new(), sim, redis, env, started: 0, dir }
    }

    /// Gateways started from here on read this file.
    pub(crate) fn configure(&mut self, file: &str) {
        let path = self.dir.path().join("batchgate.toml");
        std::fs::write(&path, file).expect("the world's directory is writable");
        self.env.insert("BATCHGATE_CONFIG".to_owned(), path.display().to_string());
    }

    /// Gateways started from here on have this setting.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.env.insert(name.to_owned(), value.into());
    }

    /// Starts one more gateway on the same Redis.
    pub(crate) async fn start_gateway(&mut self) -> &mut Gateway {
        self.start_gateway_with(&[]).await
    }

    /// Starts one more gateway that has these limits of open files, the soft and the hard one.
    pub(crate) async fn start_gateway_within(&mut self, soft: u64, hard: u64) -> &mut Gateway {
        let name = format!("gateway-{}", self.started);
        self.started += 1;
        let command = gateway::within(&gateway::command(&self.redis, &self.sim, &self.env), soft, hard);
        self.gateways.push(Gateway::run(&name, command, self.dir.path()).await);
        self.gateways.last_mut().expect("one was pushed")
    }

    /// Starts one more gateway with these settings of its own over the world's.
    pub(crate) async fn start_gateway_with(&mut self, own: &[(&str, &str)]) -> &mut Gateway {
        let name = format!("gateway-{}", self.started);
        self.started += 1;
        let mut env = self.env.clone();
        env.extend(own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let gateway = Gateway::start(&name, &self.redis, &self.sim, &env, self.dir.path()).await;
        self.gateways.push(gateway);
        self.gateways.last_mut().expect("one was pushed")
    }

    /// `batchgate` with the settings of a gateway of this world and these over them; what it shall do is still to be said.
    pub(crate) fn configured(&self, own: &[(&str, &str)]) -> std::process::Command {
        let mut env = self.env.clone();
        env.extend(own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        gateway::configured(&self.redis, &self.sim, &env)
    }

    /// Gateways started from now on have these keys for both providers, in this order.
    pub(crate) fn set_keys(&mut self, keys: &[&str]) {
        let names: Vec<String> = (0..keys.len()).map(|n| format!("KEY_{n}")).collect();
        self.env.extend(names.iter().cloned().zip(keys.iter().map(|key| (*key).to_owned())));
        let provider = |name: &str, base: String| {
            format!(
                "[[providers]]\nname = \"{name}\"\nkind = \"{name}-batch\"\nbase_url = \"{base}\"\napi_key_env = {names:?}\n"
            )
        };
        let file = self.dir.path().join("providers.toml");
        let text = provider("anthropic", self.sim.anthropic()) + &provider("openai", self.sim.openai());
        std::fs::write(&file, text).expect("the world's directory is writable");
        self.env.insert("BATCHGATE_CONFIG".into(), file.display().to_string());
    }

    /// kill -9 of the first gateway.
    pub(crate) fn kill_gateway(&mut self) {
        self.gateways.remove(0).process.kill();
    }

    /// The first gateway's client.
    pub(crate) fn client(&self) -> &Client {
        &self.gateways[0].client
    }

    /// Waits until so many chunks of a batch run.
    pub(crate) async fn running(&self, id: &str, chunks: u64) {
        wait::until("all chunks to run", async || {
            let object = self.client().batch(id).await;
            if object["chunks"]["running"] == chunks { Ok(()) } else { Err(object) }
        })
        .await;
    }

    /// Sends the head of a POST of NDJSON and this much of its body; the rest never comes.
    pub(crate) async fn send_part(&self, body: &[u8], length: usize) -> TcpStream {
        let address = &self.gateways[0].address;
        let head = format!(
            "POST /batches HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/x-ndjson\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut socket = TcpStream::connect(address).await.expect("the gateway listens");
        socket.write_all(&[head.as_bytes(), &body[..length]].concat()).await.expect("it reads");
        socket
    }
}
