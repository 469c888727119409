//! A door before a server: closed, nobody listens at its address; open, connections go through.

use std::net::SocketAddr;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    behind: SocketAddr,
    porter: Option<JoinHandle<()>>,
}

impl Door {
    /// Closed, at an address that was free a moment ago.
    pub(crate) async fn new(behind: SocketAddr) -> Door {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a listener has an address");
        Door { address, behind, porter: None }
    }

    pub(crate) async fn open(&mut self) {
        let (listener, behind) = (TcpListener::bind(self.address).await.expect("it is still free"), self.behind);
        self.porter = Some(tokio::spawn(async move {
            while let Ok((mut outside, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let Ok(mut inside) = TcpStream::connect(behind).await else { return };
                    // Either side may break off at any time.
                    let _ = copy_bidirectional(&mut outside, &mut inside).await;
                });
            }
        }));
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Some(porter) = &self.porter {
            porter.abort();
        }
    }
}
