//! For tests: a server that gives prepared answers, byte by byte as scripted, and remembers what it was asked.

use super::client::Client;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};

/// One connection per answer; yields what was asked, head and body.
pub(crate) struct Scripted {
    pub(crate) client: Client,
    asked: JoinHandle<Vec<String>>,
}

impl Scripted {
    pub(crate) async fn new(answers: &[&str]) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let answers: Vec<String> = answers.iter().map(|&answer| answer.to_owned()).collect();
        let asked = tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.expect("a client");
                let mut request = Vec::new();
                while !is_whole(&request) && stream.read_buf(&mut request).await.expect("readable") > 0 {}
                asked.push(String::from_utf8(request).expect("UTF-8"));
                stream.write_all(answer.as_bytes()).await.expect("writable");
            }
            asked
        });
        Scripted { client: Client::new(&url, Some("bg_default_x".to_owned())).expect("a good URL"), asked }
    }

    /// What was asked, once every answer was given.
    pub(crate) async fn asked(self) -> Vec<String> {
        self.asked.await.expect("the server does not panic")
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    body.len() >= length.unwrap_or(0)
}

/// A whole answer.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}", body.len())
}
