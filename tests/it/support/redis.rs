//! A Redis of the world's own: a Unix socket, the append-only file on, nothing shared with anybody. Or a cluster of three,
//! on ports of loopback: where a story asks for one, or for all stories with `BATCHGATE_TEST_REDIS=cluster`.
//! `BATCHGATE_TEST_REDIS_SERVER` names another server than `redis-server`.

use super::{process::Process, wait};
use futures_util::Stream;
use std::{
    collections::BTreeMap,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Where Redis keeps its append-only file.
const AOF: &str = "appendonlydir";
/// Nodes of a cluster, and what they share.
const NODES: usize = 3;
const SLOTS: usize = 16_384;
/// Ports are tried so often: between its choice and its use another may take one.
const TRIES: usize = 5;

pub(crate) struct Redis {
    dir: PathBuf,
    starts: u32,
    process: Process,
    /// The other nodes of a cluster, and the ports of all.
    others: Vec<Process>,
    ports: Vec<u16>,
}

impl Redis {
    #[expect(clippy::disallowed_methods, reason = "who runs the suite says in the environment against what")]
    pub(crate) async fn start(dir: &Path) -> Redis {
        if std::env::var("BATCHGATE_TEST_REDIS").is_ok_and(|kind| kind == "cluster") {
            return Redis::cluster(dir).await;
        }
        let process = Redis::spawn(dir, 0);
        let redis = Redis { dir: dir.to_owned(), starts: 0, process, others: Vec::new(), ports: Vec::new() };
        redis.answers().await;
        redis
    }

    fn spawn(dir: &Path, nth: u32) -> Process {
        let mut command = server(dir);
        command.args(["--port", "0"]).arg("--unixsocket").arg(dir.join("redis.sock"));
        Process::start(&format!("redis-{nth}"), command, dir)
    }

    /// Three nodes that share all slots among them.
    pub(crate) async fn cluster(dir: &Path) -> Redis {
        let (mut processes, mut ports) = (Vec::new(), Vec::new());
        for nth in 0..NODES {
            let (process, port) = Redis::spawn_node(dir, nth).await;
            processes.push(process);
            ports.push(port);
        }
        let process = processes.remove(0);
        let redis = Redis { dir: dir.to_owned(), starts: 0, process, others: processes, ports };
        redis.join().await;
        redis
    }

    async fn spawn_node(dir: &Path, nth: usize) -> (Process, u16) {
        for attempt in 0..TRIES {
            let home = dir.join(format!("node-{nth}-{attempt}"));
            std::fs::create_dir_all(&home).expect("the world's directory is writable");
            // Both at once, so that they differ.
            let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
            let [port, bus] = free.map(|listener| listener.local_addr().expect("it has an address").port());
            let mut command = server(&home);
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--cluster-enabled", "yes"]);
            command.args(["--cluster-port", &bus.to_string(), "--cluster-node-timeout", "5000"]);
            command.args(["--cluster-require-full-coverage", "no"]);
            let mut process = Process::start(&format!("redis-node-{nth}-{attempt}"), command, dir);
            let up = wait::until("a node to answer or to end", async || {
                if process.ended().is_some() {
                    return Ok(false);
                }
                ask::<String>(port, &["PING"]).await.map(|_| true)
            })
            .await;
            if up {
                return (process, port);
            }
        }
        panic!("no port for a node of the cluster");
    }

    async fn join(&self) {
        let told = "the node answers";
        for (nth, port) in self.ports.iter().enumerate() {
            let (first, last) = (nth * SLOTS / NODES, (nth + 1) * SLOTS / NODES - 1);
            let own = ["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()];
            ask::<String>(*port, &own).await.expect(told);
            ask::<String>(*port, &["CLUSTER", "SET-CONFIG-EPOCH", &(nth + 1).to_string()]).await.expect(told);
        }
        for process in &self.ports[1..] {
            let bus = self.bus(*process).await;
            let meet = ["CLUSTER", "MEET", "127.0.0.1", &process.to_string(), &bus];
            ask::<String>(self.ports[0], &meet).await.expect(told);
        }
        for port in &self.ports {
            wait::until("the cluster to be whole", async || {
                let info: String = ask(*port, &["CLUSTER", "INFO"]).await.map_err(|error| error.to_string())?;
                let whole = ["cluster_state:ok", &format!("cluster_known_nodes:{NODES}"), "cluster_slots_ok:16384"];
                if whole.iter().all(|word| info.contains(word)) { Ok(()) } else { Err(info) }
            })
            .await;
        }
    }

    async fn bus(&self, port: u16) -> String {
        let config: Vec<String> = ask(port, &["CONFIG", "GET", "cluster-port"]).await.expect("the node answers");
        config.into_iter().nth(1).expect("it has a bus")
    }

    /// As [`Redis::signal`], to one node of a cluster.
    pub(crate) fn signal_node(&self, nth: usize, name: &str) {
        nth.checked_sub(1).map_or(&self.process, |at| &self.others[at]).signal(name);
    }

    /// The nodes of a cluster, by their ports; none of a Redis alone.
    pub(crate) fn nodes(&self) -> &[u16] {
        &self.ports
    }

    pub(crate) fn url(&self) -> String {
        match self.ports.first() {
            Some(port) => format!("redis://127.0.0.1:{port}"),
            None => format!("unix://{}", self.socket().display()),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("redis.sock")
    }

    /// Where the keys of a command are; of one that names none, where the default namespace is.
    async fn url_for(&self, words: &[&str]) -> String {
        let key = words.iter().find(|word| word.starts_with('{')).unwrap_or(&"{default}:");
        match self.ports.first() {
            None => self.url(),
            Some(first) => {
                let slot: usize = ask(*first, &["CLUSTER", "KEYSLOT", key]).await.expect("the node answers");
                let owner = (0..NODES).find(|nth| slot < (nth + 1) * SLOTS / NODES).expect("every slot has an owner");
                format!("redis://127.0.0.1:{}", self.ports[owner])
            }
        }
    }

    /// The node of a cluster that owned this key at its start, as a URL.
    pub(crate) async fn owner(&self, key: &str) -> String {
        self.url_for(&[key]).await
    }

    /// One node's answer.
    pub(crate) async fn at<T: redis::FromRedisValue>(&self, node: &str, words: &[&str]) -> T {
        let mut connection = connection(node).await.expect("the node answers");
        let mut command = redis::cmd(words[0]);
        let answer = command.arg(&words[1..]).query_async(&mut connection).await;
        answer.unwrap_or_else(|error| panic!("{node} {words:?}: {error}"))
    }

    pub(crate) async fn connect(&self) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
        connection(&self.url_for(&[]).await).await
    }

    async fn answers(&self) {
        wait::until("redis to answer PING", async || {
            redis::cmd("PING").query_async::<String>(&mut self.connect().await?).await
        })
        .await;
    }

    /// kill -9. What was acknowledged is in the append-only file.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// `STOP` and `CONT` put it to sleep and wake it.
    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// A figure of INFO.
    pub(crate) async fn figure(&self, name: &str) -> u64 {
        let info: String = self.command(&["INFO"]).await;
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|text| text.trim().parse().ok()).unwrap_or_else(|| panic!("no {name} in INFO"))
    }

    /// Starts it again on the same data.
    pub(crate) async fn restart(&mut self) {
        self.process.kill();
        self.starts += 1;
        self.process = Redis::spawn(&self.dir, self.starts);
        self.answers().await;
    }

    /// Lays its append-only file aside as it is now.
    pub(crate) fn keep(&self) {
        let kept = self.dir.join("kept");
        std::fs::create_dir_all(&kept).expect("the world's directory is writable");
        for file in std::fs::read_dir(self.dir.join(AOF)).expect("its append-only file is there").flatten() {
            std::fs::copy(file.path(), kept.join(file.file_name())).expect("a copy");
        }
    }

    /// kill -9, and back with what was laid aside: all that was written since is lost, as after a crash of its machine.
    pub(crate) async fn restart_with_what_was_kept(&mut self) {
        self.process.kill();
        std::fs::remove_dir_all(self.dir.join(AOF)).expect("its append-only file was there");
        std::fs::rename(self.dir.join("kept"), self.dir.join(AOF)).expect("it was laid aside");
        self.restart().await;
    }

    /// kill -9, and started again on nothing: what was in it is lost.
    pub(crate) async fn restart_empty(&mut self) {
        self.process.kill();
        std::fs::remove_dir_all(self.dir.join("appendonlydir")).expect("redis keeps its data there");
        self.restart().await;
    }

    pub(crate) async fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let mut connection = connection(&self.url_for(words).await).await.expect("redis answers");
        command.query_async(&mut connection).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Every command that Redis is given from here on, a line each, as MONITOR tells them; of a cluster at the node where the
    /// default namespace is.
    pub(crate) async fn monitor(&self) -> impl Stream<Item = String> + Unpin + use<> {
        let client = redis::Client::open(self.url_for(&[]).await).expect("a URL of ours");
        client.get_async_monitor().await.expect("redis answers").into_on_message()
    }

    /// Every key with its time to live in milliseconds, -1 for ever. Not what comes and goes by itself whatever a story does:
    /// the turns of the clock's jobs, and what a Redis remembers of its home.
    pub(crate) async fn keys(&self) -> BTreeMap<String, i64> {
        let all = "local all = redis.call('KEYS', '*')
                   for n, key in ipairs(all) do all[n] = {key, redis.call('PTTL', key)} end
                   return all";
        let mut found: Vec<(String, i64)> = Vec::new();
        if self.ports.is_empty() {
            found = self.command(&["EVAL", all, "0"]).await;
        }
        for port in &self.ports {
            found.extend(ask::<Vec<(String, i64)>>(*port, &["EVAL", all, "0"]).await.expect("the node answers"));
        }
        let system = ["{sys}:home", "{sys}:at_work", "{sys}:namespaces"];
        let by_itself = |key: &str| key.contains(":turn:") || system.contains(&key);
        found.into_iter().filter(|(key, ttl)| *ttl != -2 && !by_itself(key)).collect()
    }
}

/// What every server of ours is started with.
#[expect(clippy::disallowed_methods, reason = "who runs the suite says in the environment against what")]
fn server(dir: &Path) -> Command {
    let name = std::env::var_os("BATCHGATE_TEST_REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
    let mut command = Command::new(name);
    command.args(["--save", "", "--appendonly", "yes", "--appendfsync", "always"]).arg("--dir").arg(dir);
    command
}

async fn connection(url: &str) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
    let patience = Some(Duration::from_secs(20));
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(patience).set_connection_timeout(patience);
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&patient).await
}

/// One node's answer.
async fn ask<T: redis::FromRedisValue>(port: u16, words: &[&str]) -> redis::RedisResult<T> {
    let mut connection = connection(&format!("redis://127.0.0.1:{port}")).await?;
    redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await
}
