//! `/docs`: `openapi.yaml` for reading in a browser. Swagger UI, as its package has it, is part of the binary: nothing
//! is fetched from elsewhere, and the page's policy would not let it. `docs/README.md` says where the files are from.

use super::{
    App,
    error::{ApiError, Code},
};
use axum::{
    Router,
    extract::Path,
    http::{HeaderMap, HeaderName, header},
    response::{IntoResponse, Response},
    routing::get,
};
use flate2::read::GzDecoder;
use std::io::Read;

/// Scripts, styles and requests from here alone; the style sheet draws its small images from `data:` URLs.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What the page loads. The name holds the version, so that a browser may keep it.
struct Asset {
    name: &'static str,
    kind: &'static str,
    gzip: &'static [u8],
}

const ASSETS: [Asset; 2] = [
    Asset {
        name: "swagger-ui-5.35.0.js",
        kind: "text/javascript; charset=utf-8",
        gzip: include_bytes!("docs/swagger-ui-bundle.js.gz"),
    },
    Asset {
        name: "swagger-ui-5.35.0.css",
        kind: "text/css; charset=utf-8",
        gzip: include_bytes!("docs/swagger-ui.css.gz"),
    },
];

pub(super) fn routes() -> Router<App> {
    Router::new().route("/docs", get(page)).route("/docs/start.js", get(start)).route("/docs/{asset}", get(asset))
}

async fn page() -> Response {
    let page = include_str!("docs/page.html");
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
        NO_SNIFFING,
    ];
    (headers, page).into_response()
}

async fn start() -> Response {
    let headers =
        [(header::CONTENT_TYPE, "text/javascript; charset=utf-8"), (header::CACHE_CONTROL, "no-cache"), NO_SNIFFING];
    (headers, include_str!("docs/start.js")).into_response()
}

const NO_SNIFFING: (HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");

/// Kept compressed; unpacked only for who does not take gzip.
async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, ApiError> {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
        return Err(ApiError::new(Code::NotFound, "there is no such path; see /docs"));
    };
    let said = [
        (header::CONTENT_TYPE, asset.kind),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
        (header::VARY, "accept-encoding"),
        NO_SNIFFING,
    ];
    if takes_gzip(&headers) {
        return Ok((said, [(header::CONTENT_ENCODING, "gzip")], asset.gzip).into_response());
    }
    let mut plain = Vec::new();
    let unpacked = GzDecoder::new(asset.gzip).read_to_end(&mut plain);
    unpacked.map_err(|_| ApiError::new(Code::Unavailable, "this file of ours cannot be unpacked"))?;
    Ok((said, plain).into_response())
}

/// `Accept-Encoding` names gzip, or everything, and not with a weight of nothing.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut any = false;
    for coding in values.flat_map(|value| value.split(',')) {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Ok(1.0), str::parse::<f32>);
        let taken = weight.is_ok_and(|weight| weight > 0.0);
        if name.eq_ignore_ascii_case("gzip") {
            return taken;
        }
        any |= name == "*" && taken;
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_to_whom_it_is_welcome() {
        for (value, expect) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("*", true),
            ("gzip;q=0, *", false),
            ("*;q=0", false),
            ("br, zstd", false),
            ("", false),
            ("gzip;q=x", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, value.parse().expect("a header"))]);
            assert_eq!(takes_gzip(&headers), expect, "{value}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
