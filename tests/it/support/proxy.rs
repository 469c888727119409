//! A proxy on loopback that makes trouble on request: between a gateway and a simulator, or a gateway and Redis. It knows
//! no protocol; what a request is, is told by bytes that stand in it.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    task::{JoinHandle, JoinSet},
};

/// What happens to a request, and to its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It never arrives: the connection breaks.
    CutBefore,
    /// It is handled, and the connection breaks in place of the answer.
    CutAfter,
    /// Only so many bytes of the answer arrive before the connection breaks.
    Truncate(usize),
    /// The answer comes in pieces of so many bytes, with a pause after each.
    Trickle(usize, Duration),
    /// The answer comes late.
    Delay(Duration),
}

/// Who is behind it.
#[derive(Clone, Debug)]
pub(crate) enum Behind {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

struct Rule {
    /// Bytes of the request.
    needle: String,
    trouble: Trouble,
    times: u32,
}

#[derive(Default)]
struct Plan {
    rules: VecDeque<Rule>,
    hits: u64,
}

impl Plan {
    /// The first rule that fits this piece of a request, and has not been used up.
    fn trouble(&mut self, piece: &[u8]) -> Option<Trouble> {
        let fits =
            |rule: &Rule| rule.times > 0 && piece.windows(rule.needle.len()).any(|at| at == rule.needle.as_bytes());
        let rule = self.rules.iter_mut().find(|rule| fits(rule))?;
        rule.times -= 1;
        self.hits += 1;
        Some(rule.trouble)
    }
}

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    plan: Arc<Mutex<Plan>>,
    porter: JoinHandle<()>,
}

/// An answer is over once nothing came for so long.
const QUIET: Duration = Duration::from_millis(50);

impl Proxy {
    pub(crate) async fn before(behind: Behind) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let plan = Arc::new(Mutex::new(Plan::default()));
        let porter = tokio::spawn(serve(listener, behind, Arc::clone(&plan)));
        Proxy { address, plan, porter }
    }

    /// From now on so many requests that contain these bytes meet this trouble.
    pub(crate) fn make(&self, needle: &str, trouble: Trouble, times: u32) {
        let rule = Rule { needle: needle.to_owned(), trouble, times };
        self.plan.lock().expect("nobody panics with it").rules.push_back(rule);
    }

    /// No more trouble.
    pub(crate) fn relent(&self) {
        self.plan.lock().expect("nobody panics with it").rules.clear();
    }

    /// How many requests met trouble so far.
    pub(crate) fn hits(&self) -> u64 {
        self.plan.lock().expect("nobody panics with it").hits
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.porter.abort();
    }
}

async fn serve(listener: TcpListener, behind: Behind, plan: Arc<Mutex<Plan>>) {
    let mut connections = JoinSet::new(); // they die with the proxy
    while let Ok((outside, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let (behind, plan) = (behind.clone(), Arc::clone(&plan));
        connections.spawn(async move {
            // Either side may break off at any time, and trouble breaks it on purpose.
            let _ = match behind {
                Behind::Tcp(address) => match TcpStream::connect(address).await {
                    Ok(inside) => carry(outside, inside, &plan).await,
                    Err(gone) => Err(gone),
                },
                Behind::Unix(path) => match UnixStream::connect(path).await {
                    Ok(inside) => carry(outside, inside, &plan).await,
                    Err(gone) => Err(gone),
                },
            };
        });
    }
}

/// Carries requests in and answers out, until one side ends or trouble says so.
async fn carry(
    mut outside: TcpStream,
    mut inside: impl AsyncRead + AsyncWrite + Unpin,
    plan: &Mutex<Plan>,
) -> std::io::Result<()> {
    outside.set_nodelay(true)?;
    let (mut request, mut answer) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut trouble = None;
    loop {
        tokio::select! {
            read = outside.read(&mut request) => {
                let piece = &request[..read?];
                if piece.is_empty() {
                    return Ok(());
                }
                let met = plan.lock().expect("nobody panics with it").trouble(piece);
                if met == Some(Trouble::CutBefore) {
                    return Ok(());
                }
                trouble = met.or(trouble);
                inside.write_all(piece).await?;
            }
            read = inside.read(&mut answer) => {
                let piece = &answer[..read?];
                if piece.is_empty() {
                    return Ok(());
                }
                match trouble {
                    None | Some(Trouble::CutBefore) => outside.write_all(piece).await?,
                    Some(Trouble::Delay(time)) => {
                        trouble = None;
                        tokio::time::sleep(time).await;
                        outside.write_all(piece).await?;
                    }
                    Some(Trouble::Trickle(bytes, pause)) => {
                        for drop in piece.chunks(bytes) {
                            outside.write_all(drop).await?;
                            tokio::time::sleep(pause).await;
                        }
                    }
                    Some(Trouble::Truncate(bytes)) => {
                        outside.write_all(&piece[..bytes.min(piece.len())]).await?;
                        return Ok(());
                    }
                    Some(Trouble::CutAfter) => {
                        // Whoever answers must not learn of it before he is done.
                        while let Ok(Ok(more)) = tokio::time::timeout(QUIET, inside.read(&mut answer)).await && more > 0 {}
                        return Ok(());
                    }
                }
            }
        }
    }
}
