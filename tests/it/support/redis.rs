//! A Redis of the world's own: a Unix socket, the append-only file on, nothing shared with anybody.

use super::{process::Process, wait};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

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
        format!("unix://{}", self.dir.join("redis.sock").display())
    }

    pub(crate) async fn connect(&self) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
        redis::Client::open(self.url())?.get_multiplexed_async_connection().await
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

    /// Starts it again on the same data.
    pub(crate) async fn restart(&mut self) {
        self.process.kill();
        self.starts += 1;
        self.process = Redis::spawn(&self.dir, self.starts);
        self.answers().await;
    }

    pub(crate) async fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let mut connection = self.connect().await.expect("redis answers");
        command.query_async(&mut connection).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Every key with its time to live in milliseconds, -1 for ever; but for the turns of the clock's jobs, which come and
    /// go by themselves in the quietest world.
    pub(crate) async fn keys(&self) -> BTreeMap<String, i64> {
        let mut found = BTreeMap::new();
        for key in self.command::<Vec<String>>(&["KEYS", "*"]).await {
            let ttl = self.command::<i64>(&["PTTL", &key]).await;
            let turn = key.starts_with("{default}:turn:") && ttl != -1;
            if ttl != -2 && !turn {
                found.insert(key, ttl);
            }
        }
        found
    }
}
