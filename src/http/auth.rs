//! Who is asking. Open (one team, `default`) only on a loopback address, and then not for foreign web pages.

use super::{
    App, body,
    error::{ApiError, Code},
};
use crate::{
    clock::{self, Millis},
    domain::{
        quota::Bounds,
        team::{Role, Team, Teams},
    },
};
use axum::{
    Extension,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, header, uri::Authority},
    middleware::Next,
    response::Response,
};
use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    net::{Ipv4Addr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError, RwLock},
};
use subtle::ConstantTimeEq;

/// The use of a key is written down at most this often.
const USES_EVERY_MS: Millis = 60_000;

/// How requests prove who they are. Teams may change while requests are served; each request sees one state of them.
pub struct Auth {
    teams: RwLock<Arc<Teams>>,
    /// Who asks where no keys are configured: loopback only, and credentials are ignored.
    open: Arc<Team>,
    /// When the use of a key was last written down, by team and name.
    noted: Mutex<HashMap<(String, String), Millis>>,
}

/// A key that was let in, and whose use is to be written down.
struct Used {
    team: String,
    key: String,
}

pub(super) async fn require_team(
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let now = clock::now_ms();
    match app.auth.team(request.headers(), now) {
        Ok((team, used)) => {
            if let Some(Used { team, key }) = used {
                let store = app.spaces.common().store.clone();
                app.tasks.spawn(async move {
                    if let Err(error) = store.note_key_use(&team, &key, now).await {
                        tracing::debug!(%error, "note the use of a key");
                    }
                });
            }
            request.extensions_mut().insert(team);
            Ok(next.run(request).await)
        }
        Err(error) => {
            body::drain(request.into_body()).await;
            Err(error)
        }
    }
}

/// For what is an operator's business.
pub(super) async fn require_admin(
    Extension(team): Extension<Arc<Team>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if team.is_admin() {
        return Ok(next.run(request).await);
    }
    body::drain(request.into_body()).await;
    Err(ApiError::new(Code::Forbidden, "this is for a team with the role admin; yours is a member"))
}

impl Auth {
    /// `bounds`: of whoever asks without keys.
    pub fn new(teams: Teams, bounds: Bounds) -> Auth {
        let open = Arc::new(Team { bounds, ..Team::new(Team::DEFAULT, Role::Admin) });
        Auth { teams: RwLock::new(Arc::new(teams)), open, noted: Mutex::default() }
    }

    /// From the next request on.
    pub fn replace(&self, teams: Teams) {
        *self.teams.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(teams);
    }

    pub fn asks_for_keys(&self) -> bool {
        !self.teams().are_open()
    }

    /// True if whoever asks is of one and the same team.
    pub(super) fn knows_one_team(&self) -> bool {
        self.teams().0.len() < 2
    }

    pub(super) fn teams(&self) -> Arc<Teams> {
        Arc::clone(&self.teams.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// All there are.
    pub(super) fn team_names(&self) -> Vec<String> {
        let teams = self.teams();
        let open = teams.are_open().then(|| self.open.name.clone());
        teams.0.iter().map(|(team, _)| team.name.clone()).chain(open).collect()
    }

    fn team(&self, headers: &HeaderMap, now: Millis) -> Result<(Arc<Team>, Option<Used>), ApiError> {
        let teams = self.teams();
        if teams.are_open() {
            return Ok((Arc::clone(&self.open), None));
        }
        let digest: [u8; 32] = Sha256::digest(presented(headers)?.as_bytes()).into();
        // All are compared, so that time does not tell which came close.
        let mut found = None;
        for (team, key) in teams.keys() {
            if key.hash.ct_eq(&digest).into() {
                found = Some((team, key));
            }
        }
        let (team, key) = found.ok_or_else(|| unauthorized("this key is not known here"))?;
        if key.is_expired(now) {
            return Err(unauthorized("this key has expired: ask whoever runs the gateway for a new one"));
        }
        Ok((Arc::clone(team), self.used(&team.name, &key.name, now)))
    }

    fn used(&self, team: &str, key: &str, now: Millis) -> Option<Used> {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let last = noted.entry((team.to_owned(), key.to_owned())).or_default();
        if now.saturating_sub(*last) < USES_EVERY_MS {
            return None;
        }
        *last = now;
        Some(Used { team: team.to_owned(), key: key.to_owned() })
    }

    /// In open mode a web page must not spend the company's money: only loopback names may be in Host and Origin.
    pub(super) fn refuses_origin(&self, request: &Request) -> Option<ApiError> {
        if self.asks_for_keys() { None } else { foreign(request) }
    }
}

/// The refusal of a request whose Host or Origin is no loopback name, or is there twice: who looks at the one could act on
/// the other.
pub(super) fn foreign(request: &Request) -> Option<ApiError> {
    let foreign = |name: HeaderName, fine: fn(&str) -> bool| {
        let mut values = request.headers().get_all(&name).iter();
        let fine = match (values.next(), values.next()) {
            (None, _) => true,
            (Some(value), None) => value.to_str().is_ok_and(fine),
            (Some(_), Some(_)) => false,
        };
        (!fine).then_some(name)
    };
    // In HTTP/2, and in a request line with a whole URL, the name stands in the target.
    let target = request.uri().authority().filter(|authority| !is_loopback(authority)).map(|_| header::HOST);
    let name = target
        .or_else(|| foreign(header::HOST, is_loopback_host))
        .or_else(|| foreign(header::ORIGIN, is_loopback_origin))?;
    let detail = format!(
        "without keys this gateway answers only to loopback names, and {name} names another or is there more than once"
    );
    Some(ApiError::new(Code::Forbidden, detail))
}

/// The key a request carries, as `Authorization: Bearer` or `x-api-key`.
fn presented(headers: &HeaderMap) -> Result<String, ApiError> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default().trim().to_owned());
    let bearer = text("authorization").map(|value| {
        let (scheme, key) = value.split_once(' ').unwrap_or(("", ""));
        if scheme.eq_ignore_ascii_case("bearer") { key.trim().to_owned() } else { String::new() }
    });
    match (bearer, text("x-api-key")) {
        (Some(one), Some(other)) if one != other => {
            Err(unauthorized("Authorization and x-api-key carry different keys: send one"))
        }
        (Some(key), _) | (None, Some(key)) if !key.is_empty() => Ok(key),
        _ => Err(unauthorized("send your key as `Authorization: Bearer <key>` or `x-api-key: <key>`")),
    }
}

fn unauthorized(detail: &str) -> ApiError {
    ApiError::new(Code::Unauthorized, detail)
}

/// What Host says: a name and perhaps a port.
fn is_loopback_host(text: &str) -> bool {
    text.parse().is_ok_and(|authority: Authority| is_loopback(&authority))
}

/// What Origin says: the same behind the scheme of a web page, and no path.
fn is_loopback_origin(text: &str) -> bool {
    text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).is_some_and(is_loopback_host)
}

/// True for `localhost`, 127.0.0.0/8 and `[::1]`, with or without a port, and for nothing that has more to it: what
/// [`Authority`] takes for the host of `[::1].evil.example` or `evil@localhost` is only a part of it.
fn is_loopback(authority: &Authority) -> bool {
    let host = authority.host();
    let Some(rest) = authority.as_str().strip_prefix(host) else { return false };
    let only_a_port = rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    let six = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let loopback = host.eq_ignore_ascii_case("localhost")
        || host.parse().is_ok_and(|ip: Ipv4Addr| ip.is_loopback())
        || six.is_some_and(|host| host.parse().is_ok_and(|ip: Ipv6Addr| ip.is_loopback()));
    only_a_port && loopback
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_pass_in_open_mode() {
        let hosts = ["localhost", "LocalHost:8080", "127.0.0.1:1", "127.9.9.9", "[::1]", "[::1]:80"];
        for host in hosts {
            assert!(is_loopback_host(host) && !is_loopback_origin(host), "{host}");
            for scheme in ["http", "https"] {
                let origin = format!("{scheme}://{host}");
                assert!(is_loopback_origin(&origin) && !is_loopback_host(&origin), "{origin}");
            }
        }
        for host in [
            "",
            "null",
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "localhost.",
            "10.0.0.1",
            "0.0.0.0",
            "127.1",
            "2130706433",
            "[::1].evil.example",
            "[::1]evil",
            "[::1]:80:80",
            "[::1]:port",
            "[::1",
            "::1",
            "[::2]",
            "[::ffff:127.0.0.1]",
            "evil@localhost",
            "localhost@evil.example",
            "localhost:80@evil.example",
            "evil.example:80:localhost",
            "localhost:evil",
            "localhost:65536",
            "localhost:",
            "localhost/evil",
            "localhost?evil",
            "localhost, evil.example",
            "localhost evil.example",
            " localhost",
        ] {
            assert!(!is_loopback_host(host), "{host:?}");
            assert!(!is_loopback_origin(&format!("http://{host}")), "{host:?}");
        }
        for origin in
            ["x://localhost", "file://localhost", "http://localhost/", "http:localhost", "http://http://localhost"]
        {
            assert!(!is_loopback_origin(origin), "{origin}");
        }
    }

    #[test]
    fn a_name_that_is_there_twice_is_none() {
        let request = |target: &str, headers: &[(HeaderName, &'static str)]| {
            let mut request = Request::new(axum::body::Body::empty());
            *request.uri_mut() = target.parse().expect("a target");
            for (name, value) in headers {
                request.headers_mut().append(name, axum::http::HeaderValue::from_static(value));
            }
            request
        };
        let (ours, web) = ("localhost", "http://localhost");
        for (target, headers) in [
            ("/", &[][..]),
            ("/", &[(header::HOST, ours)]),
            ("/", &[(header::HOST, ours), (header::ORIGIN, web)]),
            ("http://localhost:1/", &[(header::HOST, ours)]),
        ] {
            assert!(foreign(&request(target, headers)).is_none(), "{target} {headers:?}");
        }
        for (target, headers) in [
            ("/", &[(header::HOST, ours), (header::HOST, ours)][..]),
            ("/", &[(header::HOST, ours), (header::HOST, "evil.example")]),
            ("/", &[(header::HOST, "evil.example"), (header::HOST, ours)]),
            ("/", &[(header::HOST, ours), (header::ORIGIN, web), (header::ORIGIN, web)]),
            ("http://evil.example/", &[(header::HOST, ours)]),
            ("http://evil@localhost/", &[(header::HOST, ours)]),
        ] {
            assert!(foreign(&request(target, headers)).is_some(), "{target} {headers:?}");
        }
    }

    #[test]
    fn two_different_keys_are_refused() {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", "Bearer a".parse().expect("a header"));
        headers.insert("x-api-key", "a".parse().expect("a header"));
        assert_eq!(presented(&headers).expect("the same key twice"), "a");
        headers.insert("x-api-key", "b".parse().expect("a header"));
        assert!(presented(&headers).is_err());
    }
}
