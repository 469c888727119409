//! Who is asking. Open (one team, `default`) only on a loopback address, and then not for foreign web pages.

use super::{
    App, body,
    error::{ApiError, Code},
};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, header},
    middleware::Next,
    response::Response,
};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The one team there is until teams are configured.
const DEFAULT_TEAM: &str = "default";

/// How requests prove who they are.
#[derive(Clone, Debug)]
pub enum Auth {
    /// No key configured, loopback only: credentials are ignored.
    Open,
    /// SHA-256 digests of the keys of the team `default`.
    Keys(Vec<[u8; 32]>),
}

/// The team a request belongs to.
#[derive(Clone, Debug)]
pub(super) struct Team(pub(super) String);

pub(super) async fn require_team(
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    match app.auth.team(request.headers()) {
        Ok(team) => {
            request.extensions_mut().insert(team);
            Ok(next.run(request).await)
        }
        Err(error) => {
            body::drain(request.into_body()).await;
            Err(error)
        }
    }
}

impl Auth {
    fn team(&self, headers: &HeaderMap) -> Result<Team, ApiError> {
        let Auth::Keys(keys) = self else { return Ok(Team(DEFAULT_TEAM.to_owned())) };
        let key = presented(headers)?;
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        // All are compared, so that time does not tell which came close.
        let known = keys.iter().fold(subtle::Choice::from(0), |known, key| known | key.ct_eq(&digest));
        if known.into() { Ok(Team(DEFAULT_TEAM.to_owned())) } else { Err(unauthorized("this key is not known here")) }
    }

    /// In open mode a web page must not spend the company's money: only loopback names may be in Host and Origin.
    pub(super) fn refuses_origin(&self, request: &Request) -> Option<ApiError> {
        if matches!(self, Auth::Open) { foreign(request) } else { None }
    }
}

/// The refusal of a request whose Host or Origin is no loopback name.
pub(super) fn foreign(request: &Request) -> Option<ApiError> {
    let foreign = |name: header::HeaderName| {
        let value = request.headers().get(&name)?;
        (!value.to_str().is_ok_and(is_loopback)).then_some(name)
    };
    // In HTTP/2, and in a request line with a whole URL, the name stands in the target.
    let target = request.uri().authority().filter(|authority| !is_loopback(authority.as_str()));
    let name = target.map(|_| header::HOST).or_else(|| foreign(header::HOST)).or_else(|| foreign(header::ORIGIN))?;
    let detail = format!("without keys this gateway answers only to loopback names, and {name} names another");
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

/// True for `localhost`, 127.0.0.0/8 and `[::1]`, with or without scheme and port.
fn is_loopback(authority: &str) -> bool {
    let host = authority.split_once("://").map_or(authority, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or_default();
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next() == Some("::1");
    }
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: std::net::Ipv4Addr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_pass_in_open_mode() {
        for name in ["localhost", "localhost:8080", "127.0.0.1:1", "http://127.9.9.9:1", "[::1]:80", "http://localhost"]
        {
            assert!(is_loopback(name), "{name}");
        }
        for name in ["evil.example", "http://evil.example:8080", "localhost.evil.example", "10.0.0.1", "null", ""] {
            assert!(!is_loopback(name), "{name}");
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
