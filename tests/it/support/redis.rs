//! A Redis of the world's own: a Unix socket, the append-only file on, nothing shared with anybody.

use super::{process::Process, wait};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
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
        format!("unix://{}", self.socket().display())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("redis.sock")
    }

    /// `STOP` puts it to sleep, `CONT` wakes it.
    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name);
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

    /// Every key with its time to live in milliseconds, -1 for ever.
    pub(crate) async fn keys(&self) -> BTreeMap<String, i64> {
        let all = "local all = redis.call('KEYS', '*')
                   for n, key in ipairs(all) do all[n] = {key, redis.call('PTTL', key)} end
                   return all";
        let found: Vec<(String, i64)> = self.command(&["EVAL", all, "0"]).await;
        found.into_iter().filter(|(_, ttl)| *ttl != -2).collect()
    }
}
