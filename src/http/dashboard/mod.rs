//! `/`: the page for people. A handful of fixed files, compiled in; the page is a client of the public API and nothing
//! more. Knows no batch, asks for no key: what it shows, the browser fetches with the key of who looks at it.
//!
//! These paths are not in `openapi.yaml`: they belong to the page, and change with it.

use super::App;
use axum::{
    Router,
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use sha2::{Digest, Sha256};

/// Own files only, nothing inline: a hostile answer that got into the page could still neither run nor phone home.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What every file of the page is sent with. `no-cache`: kept, but asked for again by its `ETag` before each use, so
/// that page and gateway are of one version.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-cache"),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// One file of the page.
#[derive(Clone, Copy)]
struct File {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const FILES: [File; 11] = [
    File { path: "/", kind: HTML, text: include_str!("index.html") },
    File { path: "/assets/style.css", kind: CSS, text: include_str!("style.css") },
    File { path: "/assets/app.js", kind: SCRIPT, text: include_str!("app.js") },
    File { path: "/assets/api.js", kind: SCRIPT, text: include_str!("api.js") },
    File { path: "/assets/show.js", kind: SCRIPT, text: include_str!("show.js") },
    File { path: "/assets/list.js", kind: SCRIPT, text: include_str!("list.js") },
    File { path: "/assets/batch.js", kind: SCRIPT, text: include_str!("batch.js") },
    File { path: "/assets/results.js", kind: SCRIPT, text: include_str!("results.js") },
    File { path: "/assets/chunks.js", kind: SCRIPT, text: include_str!("chunks.js") },
    File { path: "/assets/tally.js", kind: SCRIPT, text: include_str!("tally.js") },
    File { path: "/assets/icon.svg", kind: "image/svg+xml", text: include_str!("icon.svg") },
];

pub(super) fn routes() -> Router<App> {
    FILES.into_iter().fold(Router::new(), |router, file| {
        let tag = tag(file.text);
        router.route(file.path, get(move |headers: HeaderMap| std::future::ready(answer(file, &tag, &headers))))
    })
}

/// The file, or 304 to a browser that has it.
fn answer(file: File, tag: &HeaderValue, asked: &HeaderMap) -> Response {
    let mut response = if is_known(asked, tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let mut whole = Response::new(Body::from(file.text));
        whole.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
        whole
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, tag.clone());
    headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

/// A name for exactly this text.
fn tag(text: &str) -> HeaderValue {
    let digest = Sha256::digest(text);
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::from_str(&format!("\"{hex}\"")).expect("hex digits are a header value")
}

/// Does `If-None-Match` name it? Weak tags count: a proxy that compresses makes one of ours.
fn is_known(asked: &HeaderMap, tag: &HeaderValue) -> bool {
    let lists = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = lists.flat_map(|list| list.split(',')).map(str::trim);
    tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known).as_bytes() == tag.as_bytes())
}
