//! Answers under gzip or zstd, for those who accept them: JSON and lines, streams included. Whatever the stream below
//! gives is sent at once, and one that breaks off is reset, as without a coding.

use axum::{extract::Request, http::HeaderMap};
use http::{HeaderValue, StatusCode, Version, header};
use tower_http::compression::{
    CompressionLayer,
    predicate::{And, Predicate, SizeAbove},
};

/// A body known to be shorter than this goes as it is: a coding would hardly shorten it.
const TINY: u64 = 1_024;

type Worth = fn(StatusCode, Version, &HeaderMap, &http::Extensions) -> bool;

/// Compresses what is worth it.
pub(super) fn layer() -> CompressionLayer<And<SizeAbove, Worth>> {
    let text: Worth = |_, _, headers, _| {
        let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        kind.is_some_and(|kind| kind == b"application/json" || kind == b"application/x-ndjson")
    };
    CompressionLayer::new().compress_when(SizeAbove::new(TINY).and(text))
}

/// No coding is the last resort even for those who exclude it. The layer would answer 406, after the handler has done
/// its work: a batch would exist that nobody was told of.
pub(super) async fn last_resort(mut request: Request) -> Request {
    let theirs: Vec<HeaderValue> = request.headers().get_all(header::ACCEPT_ENCODING).iter().cloned().collect();
    if !theirs.is_empty() {
        let headers = request.headers_mut();
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity;q=0.001"));
        for value in theirs {
            headers.append(header::ACCEPT_ENCODING, value);
        }
    }
    request
}
