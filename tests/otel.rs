//! Spans leave for a collector: a gateway that answers one request tells it of that request.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

/// Told to stop, whatever happens, and waited for: it stops the private Redis it started.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

/// Reads one request and answers 200: its path and its body.
fn one_request(listener: &TcpListener) -> (String, String) {
    let (stream, _) = listener.accept().expect("the gateway calls");
    let mut reader = BufReader::new(stream.try_clone().expect("a stream can be had twice"));
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a head of text");
        if line.trim().is_empty() {
            break;
        }
        let lower = line.to_ascii_lowercase();
        length = lower.strip_prefix("content-length:").map_or(length, |n| n.trim().parse().expect("a number"));
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    answer(stream);
    (head.split(' ').nth(1).unwrap_or_default().to_owned(), String::from_utf8_lossy(&body).into_owned())
}

fn answer(mut stream: TcpStream) {
    let reply = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    stream.write_all(reply.as_bytes()).expect("the gateway reads");
}

#[test]
fn spans_reach_the_collector() {
    let collector = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", collector.local_addr().expect("an address"));
    let home = std::env::temp_dir().join(format!("batchgate-otel-{}", std::process::id()));
    std::fs::create_dir_all(&home).expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_batchgate"));
    command.arg("serve").env_clear().current_dir(&home).stderr(Stdio::piped());
    for (name, value) in [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("BATCHGATE_LISTEN", "127.0.0.1:0"),
        ("ANTHROPIC_API_KEY", "k"),
        ("BATCHGATE_LOG_FORMAT", "json"),
        ("BATCHGATE_OTLP_ENDPOINT", endpoint.as_str()),
    ] {
        command.env(name, value);
    }
    let mut gateway = Running(command.spawn().expect("the gateway starts"));
    let mut log = BufReader::new(gateway.0.stderr.take().expect("its log"));
    let address = loop {
        let mut line = String::new();
        assert_ne!(log.read_line(&mut line).expect("text"), 0, "the gateway ended at its start");
        if let Some((_, rest)) = line.split_once("\"address\":\"") {
            break rest.split('"').next().expect("a closing quote").to_owned();
        }
    };
    let mut ask = TcpStream::connect(&address).expect("the gateway listens");
    write!(ask, "GET /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").expect("it reads");
    let mut said = String::new();
    ask.read_to_string(&mut said).expect("it answers");
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    let (path, body) = one_request(&collector);
    assert_eq!(path, "/v1/traces");
    for word in ["batchgate", "\"http\"", "/healthz", "request_id"] {
        assert!(body.contains(word), "{word} in {body}");
    }
    drop((log, gateway));
    std::fs::remove_dir_all(&home).expect("the directory was ours");
}
