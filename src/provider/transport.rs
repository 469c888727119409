//! HTTP once, for every provider: addresses, keys, time-outs, and what an answer or its absence means.
//!
//! Absent on purpose: retries (the worker's schedule repeats reads; nothing ever repeats a create), redirects other than
//! of downloads, compression, HTTP/2 (its default windows made large bodies five times slower), and any log of a body.

use super::{
    CallError, CreateError, Throttle,
    download::Download,
    exchange::{self, Outgoing, Patience, Reply, Unanswered},
    faults::{self, PauseSigns},
    keys::{Key, Round},
    lines::MAX_LINE,
    parcel::Progress,
    rates,
    registry::{Account, AccountError},
};
use crate::domain::{
    account::Call,
    identity::{Identity, Kin},
};
use bytes::Bytes;
use reqwest::{
    Client, ClientBuilder, Method, RequestBuilder, Response, StatusCode, Url,
    header::{HeaderMap, HeaderName, HeaderValue, LOCATION},
    redirect, retry,
};
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REDIRECTS: usize = 5;
/// A pooled connection to a server that is asked one by one; servers in use close theirs after five seconds or more.
const IDLE_CONNECTION: Duration = Duration::from_secs(2);
/// How many times the stall limit a download may take to begin.
const OPENING: u32 = 4;

/// What a provider wants of every call, and how it speaks of its accounts.
pub(super) struct Dialect {
    /// Its name in metrics and logs.
    pub provider: &'static str,
    pub key_header: &'static str,
    pub key_prefix: &'static str,
    /// Sent where the call has no word of its own on them.
    pub headers: &'static [(&'static str, &'static str)],
    /// Reply headers that say whose account this is, widest first.
    pub identity: &'static [&'static str],
    pub pause: PauseSigns,
}

/// An account's connection to its provider.
pub(super) struct Transport {
    pub account: String,
    pub dialect: &'static Dialect,
    base: Url,
    keys: Vec<Key>,
    pooled: Client,
    /// A connection of its own for each create: one out of a pool may be half dead, and every reset is a doubt.
    fresh: Client,
    pub stall: Duration,
    create_timeout: Duration,
    throttle: Mutex<Option<Throttle>>,
}

impl Transport {
    pub(super) fn new(account: &Account, dialect: &'static Dialect) -> Result<Transport, AccountError> {
        if account.api_keys.is_empty() {
            return Err(AccountError::NoKey { account: account.name.clone() });
        }
        Transport::build(account, dialect, account.base_url.trim_end_matches('/'), |pool| {
            pool.pool_max_idle_per_host(8)
        })
    }

    /// Of a server that is asked one by one: it may want no key; at a bare host its API is under `/v1`; and a connection
    /// is used again only while it is certainly alive, for servers close idle ones after a few seconds.
    pub(super) fn online(account: &Account, dialect: &'static Dialect) -> Result<Transport, AccountError> {
        let given = account.base_url.trim_end_matches('/');
        let bare = Url::parse(given).is_ok_and(|url| url.path() == "/");
        let base = if bare { format!("{given}/v1") } else { given.to_owned() };
        Transport::build(account, dialect, &base, |pool| pool.pool_idle_timeout(IDLE_CONNECTION))
    }

    fn build(
        account: &Account,
        dialect: &'static Dialect,
        base: &str,
        pool: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Transport, AccountError> {
        let name = || account.name.clone();
        let base_error = || AccountError::BaseUrl { account: name(), url: account.base_url.clone() };
        let base = Url::parse(base).map_err(|_| base_error())?;
        if !matches!(base.scheme(), "http" | "https") || base.query().is_some() || base.fragment().is_some() {
            return Err(base_error());
        }
        let key = |(index, secret)| {
            Key::new(dialect.key_prefix, secret)
                .ok_or_else(|| AccountError::UnusableKey { account: name(), number: index + 1 })
        };
        let plain = || {
            Client::builder()
                .user_agent(concat!("batchgate/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIMEOUT.min(account.stall))
                .redirect(redirect::Policy::none())
                .retry(retry::never())
                .http1_only()
                .tcp_nodelay(true)
        };
        let client =
            |builder: ClientBuilder| builder.build().map_err(|source| AccountError::Client { account: name(), source });
        Ok(Transport {
            account: name(),
            dialect,
            base,
            keys: account.api_keys.iter().enumerate().map(key).collect::<Result<_, _>>()?,
            pooled: client(pool(plain()))?,
            fresh: client(plain().pool_max_idle_per_host(0))?,
            stall: account.stall,
            create_timeout: account.create_timeout,
            throttle: Mutex::default(),
        })
    }

    /// A call that may be repeated. `path` is below the base URL, with its query; every key is tried until one is let in.
    pub(super) async fn call(&self, what: &str, method: Method, path: &str) -> Result<Reply, CallError> {
        let mut round = Round::default();
        for key in &self.keys {
            match self.call_with(key, what, method.clone(), path).await {
                Ok(reply) => return Ok(reply),
                Err(error) => round.shut_out(error)?,
            }
        }
        Err(round.end())
    }

    /// The same with one key alone.
    pub(super) async fn call_with(
        &self,
        key: &Key,
        what: &str,
        method: Method,
        path: &str,
    ) -> Result<Reply, CallError> {
        let post = method == Method::POST;
        let mut builder = self.request(&self.pooled, method, self.url(path), Some(&key.header), &[]);
        if post {
            builder = builder.header("content-length", "0"); // some proxies refuse a POST without it
        }
        let reply = exchange::whole(builder, &Progress::whole(), self.brief())
            .await
            .map_err(|lost| again(what, lost.detail))?;
        self.note(Call::Read, key, reply.status, &reply.headers);
        if reply.status.is_success() { Ok(reply) } else { Err(self.failure(what, &reply)) }
    }

    /// A GET where there may be no key; with the first, if there is one.
    pub(super) async fn look(&self, what: &str, path: &str) -> Result<Reply, CallError> {
        let key = self.keys.first().map(|key| &key.header);
        let builder = self.request(&self.pooled, Method::GET, self.url(path), key, &[]);
        let reply = exchange::whole(builder, &Progress::whole(), self.brief())
            .await
            .map_err(|lost| again(what, lost.detail))?;
        if reply.status.is_success() { Ok(reply) } else { Err(self.failure(what, &reply)) }
    }

    pub(super) fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The key that creates. An account has one: checked in [`Transport::new`]; a server asked one by one may have none.
    pub(super) fn first_key(&self) -> &Key {
        self.keys.first().expect("an account has a key: checked in Transport::new")
    }

    /// As [`super::BatchProvider::has_credential`].
    pub(super) fn has_credential(&self, name: &str) -> bool {
        self.keys.iter().any(|key| key.name() == name)
    }

    /// As [`super::BatchProvider::identity`].
    pub(super) fn identity(&self) -> Identity {
        self.first_key().heard().unwrap_or_else(|| self.identity_of(None))
    }

    /// As [`super::BatchProvider::kin`].
    pub(super) fn kin(&self, made: &Identity) -> Kin {
        let heard: Vec<Option<Identity>> = self.keys.iter().map(Key::heard).collect();
        made.kin(heard.iter().map(Option::as_ref))
    }

    /// As [`super::BatchProvider::throttle`].
    pub(super) fn throttle(&self) -> Option<Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps whose account a reply says this is, and what its headers say of the account's limits until somebody asks: the
    /// longest wait of the widest kind counts.
    fn note(&self, call: Call, key: &Key, status: StatusCode, headers: &HeaderMap) {
        let identity = self.identity_of(Some(headers));
        if status.is_success() || identity.organisation.is_some() {
            key.hear(identity);
        }
        let Some(new) = rates::read(call, status, headers) else { return };
        let weight = |throttle: &Throttle| (throttle.call == Call::Read, throttle.wait);
        let mut kept = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_none_or(|old| weight(old) < weight(&new)) {
            *kept = Some(new);
        }
    }

    /// A POST that leaves something harmless behind: the upload of a file. Only the first key uploads.
    pub(super) async fn upload(
        &self,
        what: &str,
        path: &str,
        form: reqwest::multipart::Form,
        progress: &Progress,
    ) -> Result<Reply, CallError> {
        let key = self.first_key();
        let builder = self.request(&self.fresh, Method::POST, self.url(path), Some(&key.header), &[]).multipart(form);
        let sent = exchange::whole(builder, progress, self.patient()).await;
        sent.iter().for_each(|reply| self.note(Call::Create, key, reply.status, &reply.headers));
        match sent {
            Ok(reply) if reply.status.is_success() => Ok(reply),
            Ok(reply) => Err(self.failure(what, &reply)),
            Err(lost) => Err(unsent(what, progress, lost.detail)),
        }
    }

    /// A POST that is paid for. Only the first key creates; never repeated, and what is not certain is
    /// [`CreateError::Unknown`].
    pub(super) async fn create(
        &self,
        what: &str,
        path: &str,
        headers: &[(&'static str, String)],
        body: Outgoing,
    ) -> Result<Reply, CreateError> {
        let key = self.first_key();
        let builder = self
            .request(&self.fresh, Method::POST, self.url(path), Some(&key.header), headers)
            .header("content-type", "application/json")
            .header("content-length", body.length)
            .body(body.body);
        let sent = exchange::whole(builder, &body.progress, self.patient()).await;
        sent.iter().for_each(|reply| self.note(Call::Create, key, reply.status, &reply.headers));
        match sent {
            Ok(reply) if reply.status.is_success() => Ok(reply),
            Ok(reply) if reply.status.is_server_error() && reply.status.as_u16() != 529 => {
                Err(CreateError::Unknown { detail: self.failure(what, &reply).to_string() })
            }
            Ok(reply) => Err(CreateError::NotCreated(self.failure(what, &reply))),
            Err(lost) if lost.unsent => Err(CreateError::NotCreated(unsent(what, &body.progress, lost.detail))),
            Err(lost) => Err(CreateError::Unknown { detail: format!("{what}: {}", lost.detail) }),
        }
    }

    /// A POST that brings its own answer. With the first key, if there is one; never repeated here.
    pub(super) async fn ask(&self, path: &str, body: Bytes) -> Result<Reply, Unheard> {
        let builder = self
            .request(&self.pooled, Method::POST, self.url(path), self.keys.first().map(|key| &key.header), &[])
            .header("content-type", "application/json")
            .body(body);
        let response =
            exchange::head(builder, &Progress::whole(), self.patient()).await.map_err(|lost| match lost {
                Unanswered { unsent: true, detail, .. } => Unheard::Unsent(detail),
                Unanswered { silent: true, detail, .. } => Unheard::Silent(detail),
                Unanswered { detail, .. } => Unheard::Lost(detail),
            })?;
        let (status, headers) = (response.status(), response.headers().clone());
        match exchange::long_body(response, self.patient()).await {
            Ok(Some(body)) => Ok(Reply { status, headers, body }),
            // An error is known by its status alone.
            Ok(None) | Err(_) if !status.is_success() => Ok(Reply { status, headers, body: Bytes::new() }),
            Ok(None) => Err(Unheard::TooLong(format!("the answer has more than {MAX_LINE} bytes"))),
            Err(detail) => Err(Unheard::Lost(detail)),
        }
    }

    /// Opens a body of any size, with every key until one is let in.
    pub(super) async fn download(&self, what: &str, path: &str) -> Result<Download, CallError> {
        let mut round = Round::default();
        for key in &self.keys {
            let response = self.follow(what, self.url(path), &key.header).await?;
            if response.status() == StatusCode::OK {
                return Ok(Download::new(what.to_owned(), response, self.stall));
            }
            let (status, headers) = (response.status(), response.headers().clone());
            self.note(Call::Read, key, status, &headers);
            let body = exchange::body(response, self.stall).await.unwrap_or_default();
            round.shut_out(self.failure(what, &Reply { status, headers, body }))?;
        }
        Err(round.end())
    }

    /// The answer to a GET, or to where it sends us. A key is shown to our own origin only.
    async fn follow(&self, what: &str, mut url: Url, key: &HeaderValue) -> Result<Response, CallError> {
        let mut trusted = true;
        // A provider may have to put a large file together before its first byte.
        let opening = Patience { moving: self.stall, answer: self.stall * OPENING };
        for _ in 0..=MAX_REDIRECTS {
            let builder = self
                .request(&self.pooled, Method::GET, url.clone(), trusted.then_some(key), &[])
                .header("accept", "application/binary");
            let response =
                exchange::head(builder, &Progress::whole(), opening).await.map_err(|lost| again(what, lost.detail))?;
            let Some(next) = redirected(&url, &response) else { return Ok(response) };
            if url.scheme() == "https" && next.scheme() != "https" {
                let status = response.status().as_u16();
                return Err(CallError::Refused {
                    status,
                    code: None,
                    detail: format!("{what}: redirect to an unencrypted address"),
                });
            }
            trusted &= next.origin() == self.base.origin();
            url = next;
        }
        Err(again(what, format!("more than {MAX_REDIRECTS} redirects")))
    }

    fn request(
        &self,
        client: &Client,
        method: Method,
        url: Url,
        key: Option<&HeaderValue>,
        headers: &[(&'static str, String)],
    ) -> RequestBuilder {
        let mut builder = client.request(method, url);
        if let Some(key) = key {
            builder = builder.header(HeaderName::from_static(self.dialect.key_header), key);
        }
        for (name, value) in headers {
            builder = builder.header(*name, value);
        }
        for (name, value) in
            self.dialect.headers.iter().filter(|(name, _)| !headers.iter().any(|(given, _)| given == name))
        {
            builder = builder.header(*name, *value);
        }
        builder
    }

    fn brief(&self) -> Patience {
        Patience { moving: self.stall, answer: self.stall }
    }

    fn patient(&self) -> Patience {
        Patience { moving: self.stall, answer: self.create_timeout }
    }

    pub(super) fn failure(&self, what: &str, reply: &Reply) -> CallError {
        let error = faults::classify(what, reply.status, &reply.headers, &reply.body, &self.dialect.pause);
        let hide = |detail| self.hide(detail);
        match error {
            CallError::Again { after, detail } => CallError::Again { after, detail: hide(detail) },
            CallError::Paused { auth, detail } => CallError::Paused { auth, detail: hide(detail) },
            CallError::NotFound { detail } => CallError::NotFound { detail: hide(detail) },
            CallError::Refused { status, code, detail } => CallError::Refused { status, code, detail: hide(detail) },
        }
    }

    /// A text without our keys in it.
    pub(super) fn hide(&self, text: String) -> String {
        self.keys.iter().fold(text, |text, key| key.hide(&text))
    }

    fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        url.set_query(query);
        url
    }

    /// Whose account answered with these headers: organisation, or organisation/workspace.
    fn identity_of(&self, headers: Option<&HeaderMap>) -> Identity {
        let given = |name: &&str| headers?.get(*name)?.to_str().ok().filter(|text| !text.is_empty());
        let parts: Vec<&str> = self.dialect.identity.iter().filter_map(given).collect();
        let mut base = self.base.clone();
        // They fail only where a URL has no host; then there is nothing to take away.
        let _ = (base.set_username(""), base.set_password(None));
        let organisation = (!parts.is_empty()).then(|| parts.join("/"));
        Identity { base: base.as_str().trim_end_matches('/').to_owned(), organisation }
    }
}

/// No answer to an [`Transport::ask`].
pub(super) enum Unheard {
    /// Certain: the server never had the whole request.
    Unsent(String),
    /// Sent, and the connection broke.
    Lost(String),
    /// Sent, and nothing came in time.
    Silent(String),
    /// An answer beyond every bound.
    TooLong(String),
}

pub(super) fn again(what: &str, detail: impl std::fmt::Display) -> CallError {
    CallError::Again { after: None, detail: format!("{what}: {detail}") }
}

/// A call that never arrived whole; where it was our own side that could not go on, that is what is told.
fn unsent(what: &str, progress: &Progress, detail: String) -> CallError {
    again(what, progress.failure().unwrap_or(detail))
}

fn redirected(from: &Url, response: &Response) -> Option<Url> {
    let redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let place = response.headers().get(LOCATION).filter(|_| redirect)?;
    from.join(place.to_str().ok()?).ok()
}

/// An id as one segment of a path.
pub(super) fn segment(id: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    id.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
