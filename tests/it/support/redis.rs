//! A Redis of the world's own: a Unix socket, the append-only file on, nothing shared with anybody.

use super::{process::Process, wait};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Where Redis keeps its append-only file.
const AOF: &str = "appendonlydir";

pub(crate) struct Redis {
    dir: PathBuf,
    starts: u32,
    process: Process,
}

impl Redis {
    pub(crate) async fn start(dir: &Path) -> Redis {
        let redis = Redis { dir: dir.to_owned(), starts: 0, process: Redis::spawn(dir, 0) };
        redis.answers().await;
        redis
    }

    fn spawn(dir: &Path, nth: u32) -> Process {
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
        command.arg("--unixsocket").arg(dir.join("redis.sock")).arg("--dir").arg(dir);
        Process::start(&format!("redis-{nth}"), command, dir)
    }

    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("redis.sock")
    }

    pub(crate) async fn connect(&self) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
        let patience = Some(Duration::from_secs(20));
        let patient =
            redis::AsyncConnectionConfig::new().set_response_timeout(patience).set_connection_timeout(patience);
        redis::Client::open(self.url())?.get_multiplexed_async_connection_with_config(&patient).await
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
        let mut connection = self.connect().await.expect("redis answers");
        command.query_async(&mut connection).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Every key with its time to live in milliseconds, -1 for ever. Not what comes and goes by itself whatever a story does:
    /// the turns of the clock's jobs, and what a Redis remembers of its home.
    pub(crate) async fn keys(&self) -> BTreeMap<String, i64> {
        let all = "local all = redis.call('KEYS', '*')
                   for n, key in ipairs(all) do all[n] = {key, redis.call('PTTL', key)} end
                   return all";
        let found: Vec<(String, i64)> = self.command(&["EVAL", all, "0"]).await;
        let by_itself = |key: &str| key.contains(":turn:") || ["{sys}:home", "{sys}:at_work"].contains(&key);
        found.into_iter().filter(|(key, ttl)| *ttl != -2 && !by_itself(key)).collect()
    }
}
