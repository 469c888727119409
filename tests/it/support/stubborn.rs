//! What a client does whose gateway may die, or lose its Redis, at any time: it repeats a POST until there is an answer,
//! and looks into the list in case only the answer was lost.

use super::{
    batch::Batch,
    client::{Client, id},
};
use reqwest::Method;
use serde_json::Value;

/// A POST, and how its batch would be found in the list.
pub(crate) struct Wish<'a> {
    pub(crate) path: String,
    pub(crate) body: Option<(&'static str, String)>,
    /// The query of a list whose first entry is the batch.
    pub(crate) listed: String,
    /// Batches that are not it.
    pub(crate) known: &'a [String],
}

impl Wish<'_> {
    /// A batch that bears a label of its own: `batch.field("metadata", json!({"label": ...}))`.
    pub(crate) fn of(batch: &Batch) -> Wish<'static> {
        let label = batch.fields["metadata"]["label"].as_str().expect("it is labelled").replace(' ', "%20");
        let listed = format!("?metadata.label={label}");
        Wish { path: "/batches".into(), body: Some(batch.body()), listed, known: &[] }
    }

    /// One try: the batch's id, once it exists.
    pub(crate) async fn send(&self, client: &Client) -> Option<String> {
        let mut request = client.request(Method::POST, &self.path);
        if let Some((kind, body)) = &self.body {
            request = request.header("content-type", *kind).body(body.clone());
        }
        match client.try_send(request).await {
            Ok(reply) if reply.status == 202 => return Some(id(&reply.accepted()).to_owned()),
            Ok(reply) => drop(reply.refused(503, "unavailable")),
            Err(broken) => eprintln!("no answer to POST {}: {broken}", self.path),
        }
        None
    }

    /// Looks whether it exists already; `None` also where nobody can say.
    pub(crate) async fn look(&self, client: &Client) -> Option<String> {
        let request = client.request(Method::GET, &format!("/batches{}", self.listed));
        let reply = client.try_send(request).await.ok().filter(|reply| reply.status == 200)?;
        let list: Value = reply.json();
        let newest = list["data"].as_array().and_then(|data| data.first())?;
        Some(id(newest).to_owned()).filter(|id| !self.known.contains(id))
    }
}

/// Sends a labelled batch until it exists.
pub(crate) async fn submit(client: &Client, batch: &Batch) -> String {
    let wish = Wish::of(batch);
    for _ in 0..50 {
        if let Some(id) = wish.send(client).await {
            return id;
        }
        let looked = super::until("the list to be read", async || {
            let reply = client.get(&format!("/batches{}", wish.listed)).await;
            if reply.status == 200 { Ok(reply) } else { Err(reply.text) }
        })
        .await;
        let list = looked.json();
        if let Some(found) = list["data"].as_array().and_then(|data| data.first()) {
            return id(found).to_owned();
        }
    }
    panic!("{}: a batch that comes to nothing", wish.listed);
}
