//! Why a command could not do what it was asked, in terms of what its caller does next; and the exit codes.

use super::out::inert;
use serde_json::Value;
use std::{fmt, io, time::Duration};

/// How a command that ran to its end ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Everything asked for is there: exit code 0.
    Fine,
    /// The gateway answered, but some prompts have no answer, or it is not ready: exit code 1.
    Lacking,
    /// Who was to be asked did not answer: exit code 3.
    Unreachable,
}

/// How a command that did not come to its end failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The gateway said no: exit code 1.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// Nobody answered, or the line broke: exit code 3.
    #[error("cannot reach {url}: {reason}")]
    Unreachable { url: String, reason: String },
    /// The command line asks for something that makes no sense: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// Something on this machine (a file, a child process): exit code 1.
    #[error("{0:#}")]
    Here(#[from] anyhow::Error),
    /// Ctrl-C, said with what goes on without us: exit code 130, as shells expect, so that a script stops too.
    #[error("{0}")]
    Interrupted(String),
    /// Whoever read our output has enough: exit code 0.
    #[error("output closed")]
    OutputClosed,
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::OutputClosed => 0,
            Failure::Refused(_) | Failure::Here(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Unreachable { .. } => 3,
            Failure::Interrupted(_) => 130,
        }
    }

    /// What is said of it on standard error.
    pub(crate) fn told(&self) -> Option<String> {
        match self {
            Failure::OutputClosed => None,
            Failure::Interrupted(text) => Some(format!("\n{text}")),
            Failure::Refused(problem) => Some(format!("refused: {problem}")),
            Failure::Unreachable { .. } | Failure::Usage(_) | Failure::Here(_) => Some(format!("error: {self}")),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe { Failure::OutputClosed } else { Failure::Here(error.into()) }
    }
}

impl Ending {
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Ending::Fine => 0,
            Ending::Lacking => 1,
            Ending::Unreachable => 3,
        }
    }
}

/// An `application/problem+json` answer, or what could be made of another error answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) status: u16,
    pub(crate) code: String,
    pub(crate) detail: String,
    pub(crate) request_id: Option<String>,
    pub(crate) errors: Vec<Fault>,
    /// How many there are in all; `errors` holds the first.
    pub(crate) error_count: u64,
    pub(crate) retry_after: Option<Duration>,
}

/// One fault of a body and where it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fault {
    pub(crate) line: Option<u64>,
    pub(crate) pointer: Option<String>,
    pub(crate) message: String,
}

impl Problem {
    /// How many faults are shown on a terminal.
    const SHOWN: usize = 10;

    /// Reads an error answer. Whoever stands between us and the gateway may have written it, so nothing is taken for
    /// granted: what has no `code` is named after its status.
    pub(crate) fn read(status: u16, retry_after: Option<Duration>, body: &[u8]) -> Problem {
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let errors: Vec<Fault> = value["errors"].as_array().into_iter().flatten().map(Fault::read).collect();
        Problem {
            status,
            code: text("code").unwrap_or_else(|| format!("http_{status}")),
            detail: text("detail").or_else(|| text("title")).unwrap_or_else(|| {
                let start = String::from_utf8_lossy(&body[..body.len().min(300)]);
                if start.trim().is_empty() { "no explanation given".to_owned() } else { start.trim().to_owned() }
            }),
            request_id: text("request_id"),
            error_count: value["error_count"].as_u64().unwrap_or(errors.len() as u64),
            errors,
            retry_after,
        }
    }

    /// The same faults, with line numbers of the file instead of the body that had `added` lines before it.
    pub(crate) fn shifted(mut self, added: u64) -> Problem {
        self.errors = self.errors.into_iter().map(|fault| fault.shifted(added)).collect();
        self
    }
}

impl Fault {
    pub(crate) fn read(value: &Value) -> Fault {
        Fault {
            line: value["line"].as_u64(),
            pointer: value["pointer"].as_str().map(str::to_owned),
            message: value["message"].as_str().unwrap_or("no message").to_owned(),
        }
    }

    /// See [`Problem::shifted`].
    pub(crate) fn shifted(self, added: u64) -> Fault {
        Fault { line: self.line.map(|line| line.saturating_sub(added)), ..self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(0) => f.write_str("options of this command ")?,
            Some(line) => write!(f, "line {line} ")?,
            None => {}
        }
        if let Some(pointer) = self.pointer.as_deref().filter(|pointer| !pointer.is_empty()) {
            write!(f, "{} ", inert(pointer))?;
        }
        write!(f, "- {}", inert(&self.message))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", inert(&self.code), self.status, inert(&self.detail))?;
        for fault in self.errors.iter().take(Self::SHOWN) {
            write!(f, "\n  {fault}")?;
        }
        let shown = self.errors.len().min(Self::SHOWN) as u64;
        if self.error_count > shown {
            write!(f, "\n  ... and {} more", self.error_count - shown)?;
        }
        if let Some(after) = self.retry_after {
            write!(f, "\n  try again in {} s", after.as_secs())?;
        }
        if let Some(id) = &self.request_id {
            write!(f, "\n  request id {}", inert(id))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_problem_shows_code_detail_and_the_first_faults() {
        let faults: Vec<Value> = (0..12)
            .map(|i| json!({"line": i + 2, "pointer": "/messages/0/role", "message": "must be a string"}))
            .collect();
        let body = json!({"code": "invalid_request", "detail": "40 prompts are not acceptable", "request_id": "req_7",
                          "errors": faults, "error_count": 40});
        let shown = Problem::read(422, None, body.to_string().as_bytes()).shifted(1).to_string();
        assert!(shown.starts_with("invalid_request (422): 40 prompts are not acceptable\n"), "{shown}");
        assert!(shown.contains("\n  line 1 /messages/0/role - must be a string\n"), "{shown}");
        assert!(shown.contains("\n  ... and 30 more\n  request id req_7"), "{shown}");
    }

    #[test]
    fn hostile_answers_are_shown_inert() {
        let body = json!({"code": "x\u{1b}[2J", "detail": "fine\nreally", "errors": [{"message": "\u{7}"}]});
        let shown = Problem::read(400, None, body.to_string().as_bytes()).to_string();
        assert_eq!(shown, "x\\u001b[2J (400): fine\\u000areally\n  - \\u0007");
    }

    #[test]
    fn answers_of_strangers_are_read_too() {
        let shown = Problem::read(502, Some(Duration::from_secs(7)), b"<html>Bad Gateway</html>").to_string();
        assert_eq!(shown, "http_502 (502): <html>Bad Gateway</html>\n  try again in 7 s");
        assert_eq!(Problem::read(500, None, b"").detail, "no explanation given");
        assert_eq!(Problem::read(500, None, b"\xff\xfe[]").status, 500);
    }
}
