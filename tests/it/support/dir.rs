//! A directory that lives as long as its world. Short paths: a Unix socket's may have about a hundred bytes.

use std::path::{Path, PathBuf};

pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new() -> Dir {
        let path = std::env::temp_dir().join(format!("bg-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&path).expect("the temporary directory is writable");
        Dir(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // What is left of it is the operating system's to clean up.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
