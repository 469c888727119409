//! The place on disk for everything large: uploads, request bodies, results. Removed when the simulator ends.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

pub(crate) struct Spool {
    directory: PathBuf,
    /// No path is used twice, so a file that is still being streamed is never written over.
    last: AtomicU64,
}

impl Spool {
    pub(crate) fn create(within: &Path) -> io::Result<Self> {
        let directory = within.join(format!("batchgate-sim-{}", uuid::Uuid::now_v7()));
        fs::create_dir_all(&directory)?;
        Ok(Self { directory, last: AtomicU64::new(0) })
    }

    /// A path that nothing has been written to yet.
    pub(crate) fn fresh(&self) -> PathBuf {
        self.directory.join(format!("{:06}", self.last.fetch_add(1, Ordering::Relaxed)))
    }

    /// Forget all files; those that are open can still be read to their end.
    pub(crate) fn clear(&self) -> io::Result<()> {
        for file in fs::read_dir(&self.directory)? {
            fs::remove_file(file?.path())?;
        }
        Ok(())
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // Nobody is left to tell; the system's own cleaning of temporary files is the second chance.
        let _ = fs::remove_dir_all(&self.directory);
    }
}
