//! A stored file: an upload on disk, or one side of a batch's results.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Value, json};

use super::results::Results;
use crate::sim::{clock::unix, world::Sim};

#[derive(Clone)]
pub(crate) struct StoredFile {
    pub(crate) id: String,
    pub(crate) account: String,
    pub(crate) filename: String,
    pub(crate) purpose: String,
    pub(crate) created: f64,
    pub(crate) expires: Option<f64>,
    /// It cannot be found before.
    pub(crate) visible: f64,
    /// It is `uploaded` before and `processed` after.
    pub(crate) processed: f64,
    pub(crate) deleted: Option<f64>,
    pub(crate) content: Content,
}

#[derive(Clone)]
pub(crate) enum Content {
    Upload(PathBuf),
    /// Written to disk when first asked for.
    Results(Arc<Results>, Side),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Output,
    Error,
}

impl StoredFile {
    pub(crate) fn present(&self, now: f64) -> bool {
        let gone = [self.deleted, self.expires].into_iter().flatten().fold(f64::INFINITY, f64::min);
        self.visible <= now && now < gone
    }

    pub(crate) fn upload_path(&self) -> Option<PathBuf> {
        match &self.content {
            Content::Upload(path) => Some(path.clone()),
            Content::Results(..) => None,
        }
    }

    pub(crate) async fn path(&self, sim: &Arc<Sim>) -> io::Result<PathBuf> {
        match &self.content {
            Content::Upload(path) => Ok(path.clone()),
            Content::Results(results, side) => results.path(sim, *side).await,
        }
    }

    pub(crate) async fn render(&self, sim: &Arc<Sim>, now: f64) -> io::Result<Value> {
        let bytes = tokio::fs::metadata(self.path(sim).await?).await?.len();
        Ok(json!({
            "id": self.id, "object": "file", "bytes": bytes, "created_at": unix(self.created),
            "expires_at": self.expires.map(unix), "filename": self.filename, "purpose": self.purpose,
            "status": if now >= self.processed { "processed" } else { "uploaded" }, "status_details": null,
        }))
    }
}

/// At most `most` bytes from the start.
pub(crate) async fn read_head(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let mut head = Vec::new();
        std::fs::File::open(path)?.take(most as u64).read_to_end(&mut head)?;
        Ok(head)
    });
    read.await.map_err(io::Error::other)?
}
