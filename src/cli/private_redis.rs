//! A Redis of our own: a `redis-server` child on a Unix socket, its data in one directory, AOF on.
//!
//! Two servers on one append-only file start silently and corrupt it. So a lock file is the child's standard input:
//! the lock is held exactly as long as that server lives, whatever becomes of us. Whoever finds it held uses the
//! server that holds it. A second lock says which process stops the server in the end; when its holder was killed, the
//! next one to come takes its place. Speaks just enough of the protocol to say PING and SHUTDOWN.

use anyhow::{Context, bail, ensure};
use std::{
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::{Child, Command},
};

/// Reading back a large append-only file takes its time.
const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(20);
/// What the smallest system allows for the path of a socket.
const LONGEST_SOCKET: usize = 100;

/// A private server in use.
pub(crate) struct PrivateRedis {
    socket: PathBuf,
    /// None where a live server was found.
    child: Option<Child>,
    /// Held by the one who stops it.
    owner: Option<File>,
}

impl PrivateRedis {
    /// Starts a server in this directory, which is made if need be, or finds the one that runs there.
    pub(crate) async fn start(dir: &Path) -> anyhow::Result<PrivateRedis> {
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let dir = dir.canonicalize().with_context(|| format!("find {}", dir.display()))?;
        let socket = dir.join("redis.sock");
        ensure!(
            socket.as_os_str().len() <= LONGEST_SOCKET,
            "the path {} is too long for a Unix socket: choose a directory nearer to the root",
            socket.display()
        );
        let child = serving(&dir, &socket).await?;
        Ok(PrivateRedis { owner: lock(&dir.join("owner.lock"))?, socket, child })
    }

    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// True where a server was running already.
    pub(crate) fn was_found(&self) -> bool {
        self.child.is_none()
    }

    /// Stops the server, with all its data on disk; leaves it to its owner if that is somebody else.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        if self.owner.is_none() {
            return Ok(());
        }
        let asked = say(&self.socket, b"SHUTDOWN\r\n").await;
        match &mut self.child {
            Some(child) => match tokio::time::timeout(STOP, child.wait()).await {
                Ok(status) => ensure!(status?.success(), "redis-server did not end well; see its redis.log"),
                Err(_) => {
                    child.kill().await?;
                    bail!("redis-server did not stop in {} s and was killed", STOP.as_secs());
                }
            },
            None => drop(asked),
        }
        Ok(())
    }
}

/// The lock, or none where somebody holds it.
fn lock(path: &Path) -> anyhow::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).read(true).write(true).open(path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("lock {}", path.display())),
    }
}

fn spawn(dir: &Path, socket: &Path, alive: File) -> anyhow::Result<Child> {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--unixsocketperm", "700", "--unixsocket"]).arg(socket);
    command.arg("--dir").arg(dir).arg("--pidfile").arg(dir.join("redis.pid"));
    command.arg("--logfile").arg(dir.join("redis.log"));
    command.args(["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]);
    command.args(["--maxmemory-policy", "noeviction", "--daemonize", "no"]);
    command.stdin(Stdio::from(alive)).stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0); // Ctrl-C is for us; the server stops when the gateway has finished with it
    command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!(
            "no redis-server on the PATH: install it (Debian: apt-get install redis-server; scripts/setup does it)"
        ),
        _ => anyhow::Error::new(error).context("start redis-server"),
    })
}

/// Returns once a server answers PING with anything but "still loading": the one that holds the lock, or, as soon as
/// nobody does, a child of ours.
async fn serving(dir: &Path, socket: &Path) -> anyhow::Result<Option<Child>> {
    let began = Instant::now();
    let mut child: Option<Child> = None;
    loop {
        if child.is_none() {
            let free = lock(&dir.join("redis.lock"))?;
            child = free.map(|free| spawn(dir, socket, free)).transpose()?;
        }
        let last = match say(socket, b"PING\r\n").await {
            Ok(answer) if answer.starts_with("+PONG") => return Ok(child),
            Ok(answer) => answer,
            Err(error) => error.to_string(),
        };
        if let Some(status) = child.as_mut().map(Child::try_wait).transpose()?.flatten() {
            bail!("redis-server ended at its start ({status}); see {}", dir.join("redis.log").display());
        }
        ensure!(began.elapsed() < START, "the Redis in {} does not answer: {}", dir.display(), last.trim());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One command, and the beginning of its answer.
async fn say(socket: &Path, command: &[u8]) -> io::Result<String> {
    let exchange = async {
        let mut stream = UnixStream::connect(socket).await?;
        stream.write_all(command).await?;
        let mut answer = [0; 512];
        let read = stream.read(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
    };
    tokio::time::timeout(Duration::from_secs(5), exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_server_per_directory_is_found_again_and_stopped_by_its_owner() {
        let dir = std::env::temp_dir().join(format!("bg-redis-{}", uuid::Uuid::now_v7()));
        let first = PrivateRedis::start(&dir).await.expect("starts");
        assert!(!first.was_found());
        assert_eq!(say(&first.socket, b"SET k v\r\n").await.expect("answers"), "+OK\r\n");

        let second = PrivateRedis::start(&dir).await.expect("finds it");
        assert!(second.was_found());
        let url = second.url();
        assert!(url.starts_with("unix:///") && url.ends_with("/redis.sock"), "{url}");
        second.stop().await.expect("leaves it to the first");
        assert_eq!(say(&first.socket, b"GET k\r\n").await.expect("still answers"), "$1\r\nv\r\n");

        // The owner dies without a word; the server outlives it, and the next one becomes the owner.
        drop(first);
        let heir = PrivateRedis::start(&dir).await.expect("finds it");
        assert!(heir.was_found());
        let socket = heir.socket.clone();
        heir.stop().await.expect("stops it");
        let gone = async {
            while say(&socket, b"PING\r\n").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.expect("it stops");

        let again = PrivateRedis::start(&dir).await.expect("starts again");
        assert!(!again.was_found());
        assert_eq!(say(&again.socket, b"GET k\r\n").await.expect("kept its data"), "$1\r\nv\r\n");
        again.stop().await.expect("stops");
        std::fs::remove_dir_all(&dir).expect("our own directory");
    }
}
