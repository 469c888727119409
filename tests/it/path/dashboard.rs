//! The page for people, as it is served: its files, their headers, and what the browser may do with them. What it does
//! in a browser is told by `tests/browser`.

use crate::support::{
    Batch, Kind, World, check, claude,
    client::{Client, Reply},
};
use reqwest::Method;
use std::collections::BTreeSet;

/// Paths of the page's own files that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let quoted = text.split(['"', '\'']).filter(|word| !word.contains(char::is_whitespace));
    let files = quoted.filter_map(|word| {
        word.strip_prefix("./")
            .map(|name| format!("/assets/{name}"))
            .or_else(|| word.starts_with("/assets/").then(|| word.to_owned()))
    });
    files.collect()
}

/// Every file of the page, found as a browser finds them: from `/`, by what each names.
async fn files(client: &Client) -> Vec<(String, Reply)> {
    let (mut found, mut known) = (Vec::new(), BTreeSet::from(["/".to_owned()]));
    let mut ahead = vec!["/".to_owned()];
    while let Some(path) = ahead.pop() {
        let reply = client.get(&path).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        ahead.extend(named(&reply.text).into_iter().filter(|path| known.insert(path.clone())));
        found.push((path, reply));
    }
    found
}

#[tokio::test]
async fn the_page_may_run_its_own_files_and_nothing_else() {
    let world = World::new(Kind::Ours).await;
    let files = files(world.client()).await;
    let mut kinds = BTreeSet::new();
    for (path, reply) in &files {
        let policy = reply.header("content-security-policy");
        let rules: BTreeSet<&str> = policy.split(';').map(str::trim).collect();
        let expected = [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ];
        assert_eq!(rules, BTreeSet::from(expected), "{path}");
        assert_eq!(reply.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(reply.header("referrer-policy"), "no-referrer", "{path}");
        assert_eq!(reply.header("cross-origin-resource-policy"), "same-origin", "{path}");
        kinds.insert(reply.header("content-type").to_owned());
        for way in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "localStorage."]
        {
            assert!(!reply.text.contains(way), "{path} has {way}");
        }
        for elsewhere in ["https:", "http:"] {
            let outside = reply
                .text
                .match_indices(elsewhere)
                .any(|(at, _)| !reply.text[at..].starts_with("http://www.w3.org/2000/svg"));
            assert!(!outside, "{path} names something outside: {elsewhere}");
        }
    }
    let expected =
        ["text/html; charset=utf-8", "text/css; charset=utf-8", "text/javascript; charset=utf-8", "image/svg+xml"];
    assert_eq!(kinds, BTreeSet::from(expected.map(str::to_owned)));
    let size: usize = files.iter().map(|(_, reply)| reply.text.len()).sum();
    assert!(size < 64_000, "the page has {size} bytes: it is meant to be small");
    let html = &files[0].1.text;
    assert!(html.starts_with("<!doctype html>") && html.contains("<html lang=\"en\""));
    assert!(!html.contains("style=") && !html.contains("<style"), "no inline style");
    assert!(!html.contains(" on"), "no inline listener: {html}");
    for script in html.match_indices("<script").map(|(at, _)| &html[at..]) {
        let (open, rest) = script.split_once('>').expect("a tag ends");
        assert!(open.contains("src=\"/assets/") && rest.starts_with("</script>"), "no inline script: {open}");
    }
    check(&world, &Batch::of([claude("a")])).await;
}

#[tokio::test]
async fn the_page_is_kept_by_browsers_until_it_changes() {
    let world = World::new(Kind::Ours).await;
    let client = world.client();
    for (path, whole) in files(client).await {
        let tag = whole.header("etag").to_owned();
        assert_eq!(whole.header("cache-control"), "no-cache", "{path}");
        for (asked, status) in [
            (tag.clone(), 304),
            (format!("W/{tag}"), 304),
            (format!("\"x\", {tag}"), 304),
            ("*".to_owned(), 304),
            ("\"x\"".to_owned(), 200),
            (tag.replace('"', ""), 200),
            (String::new(), 200),
        ] {
            let reply = client.send(client.request(Method::GET, &path).header("if-none-match", &asked)).await;
            assert_eq!(reply.status, status, "{path}, If-None-Match: {asked}");
            assert_eq!(reply.text, if status == 304 { "" } else { &whole.text }, "{path}");
            assert_eq!(reply.header("etag"), tag, "{path}");
            assert_ne!(reply.header("content-security-policy"), "", "{path}");
        }
        let head = client.send(client.request(Method::HEAD, &path)).await;
        assert_eq!((head.status, head.text.as_str()), (200, ""), "HEAD {path}");
        for name in ["content-length", "content-type", "etag", "content-security-policy"] {
            assert_eq!(head.header(name), whole.header(name), "HEAD {path}: {name}");
        }
        let post = client.send(client.request(Method::POST, &path).body("x")).await;
        post.refused(405, "not_found");
    }
    for path in
        ["/assets", "/assets/", "/assets/none.js", "/assets/../Cargo.toml", "/assets/%2e%2e/mod.rs", "/index.html"]
    {
        client.get(path).await.refused(404, "not_found");
    }
    check(&world, &Batch::of([claude("a")])).await;
}

#[tokio::test]
async fn the_page_needs_no_key_but_keeps_to_the_hosts_rule() {
    let open = World::new(Kind::Ours).await;
    for (name, value) in [("host", "evil.example"), ("origin", "http://evil.example")] {
        let request = open.client().request(Method::GET, "/").header(name, value);
        open.client().send(request).await.refused(403, "forbidden");
    }
    let hash = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let keyed = World::with(Kind::Ours, &[("BATCHGATE_KEY_HASHES", hash)]).await;
    assert!(files(keyed.client()).await.len() > 3, "the page itself is no secret");
    keyed.client().get("/batches").await.refused(401, "unauthorized");
    check(&open, &Batch::of([claude("a")])).await;
}
