//! `/docs`: the reference page comes whole from the gateway, and may load nothing from anywhere else.

use crate::support::{Kind, World, client::Reply, source::home};
use reqwest::Method;
use sha2::{Digest, Sha256};

/// What the page loads: `src` and `href` of its elements.
fn loads(page: &str) -> Vec<&str> {
    let links = ["src=\"", "href=\""].into_iter().flat_map(|attribute| page.split(attribute).skip(1));
    links.map(|rest| rest.split('"').next().expect("an attribute ends")).collect()
}

async fn fetch(world: &World, path: &str, encoding: &str) -> Reply {
    let request = world.client().request(Method::GET, path).header("accept-encoding", encoding);
    world.client().send(request).await
}

#[tokio::test]
async fn the_page_and_all_it_loads_come_from_here() {
    let world = World::new(Kind::Ours).await;
    let page = world.client().get("/docs").await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    let loaded = loads(&page.text);
    assert_eq!(loaded.len(), 5, "{loaded:?}");
    for path in loaded.into_iter().filter(|path| *path != "data:,") {
        assert!(!path.contains(':') && !path.starts_with('/'), "{path} leads elsewhere");
        let reply = fetch(&world, &format!("/{path}"), "identity").await;
        assert_eq!((reply.status, reply.header("content-encoding")), (200, ""), "{path}");
        let kind = reply.header("content-type");
        assert!(
            ["text/css", "text/javascript", "application/yaml"].iter().any(|known| kind.starts_with(known)),
            "{kind}"
        );
    }
    assert!(!page.text.contains("style=") && !page.text.contains("<script>"), "nothing inline: {}", page.text);
}

#[tokio::test]
async fn the_pages_policy_names_no_other_place() {
    let world = World::new(Kind::Ours).await;
    let page = world.client().get("/docs").await;
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
    for words in policy.split(';') {
        for source in words.split_whitespace().skip(1) {
            assert!(["'none'", "'self'", "data:"].contains(&source), "{words}");
        }
    }
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    assert_eq!(page.header("referrer-policy"), "no-referrer");
}

#[tokio::test]
async fn the_vendored_files_are_the_packages_and_travel_compressed() {
    let world = World::new(Kind::Ours).await;
    let page = world.client().get("/docs").await.text;
    let folder = home().join("src/http/docs");
    let sums = std::fs::read_to_string(folder.join("SHA256SUMS")).expect("the sums are there");
    assert_eq!(sums.lines().count(), 2, "{sums}");
    for line in sums.lines() {
        let (sum, file) = line.split_once("  ./").expect("a sum and a file");
        let bytes = std::fs::read(folder.join(file)).expect("the file is there");
        let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, sum, "{file}");
        let kind = file.trim_end_matches(".gz").rsplit('.').next().expect("a file has an end");
        let served = loads(&page).into_iter().find(|path| path.contains("swagger-ui") && path.ends_with(kind));
        let served = format!("/{}", served.expect("the page loads it"));
        let reply = fetch(&world, &served, "gzip, br").await;
        assert_eq!((reply.status, reply.header("content-encoding")), (200, "gzip"), "{served}");
        assert_eq!(reply.header("content-length"), bytes.len().to_string(), "{served}");
        assert_eq!(reply.header("vary"), "accept-encoding");
        let plain = fetch(&world, &served, "identity").await.text;
        assert!(plain.len() > 2 * bytes.len() && !plain.contains("sourceMappingURL=swagger"), "{served}");
    }
}

#[tokio::test]
async fn it_needs_no_key_and_answers_no_stranger() {
    let hash = format!("sha256:{}", "0".repeat(64));
    let keyed = World::with(Kind::Ours, &[("BATCHGATE_KEY_HASHES", &hash)]).await;
    assert_eq!(keyed.client().get("/docs").await.status, 200);
    keyed.client().get("/docs/swagger-ui-1.js").await.refused(404, "not_found");
    let open = World::new(Kind::Ours).await;
    let request = open.client().request(Method::GET, "/docs").header("origin", "http://evil.example");
    open.client().send(request).await.refused(403, "forbidden");
}
