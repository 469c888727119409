//! Chores: what somebody left behind, and when it may be removed. Every chore is repeatable.

use super::{Store, StoreError, pages::ACCEPT, script, uploads::IDLE_MS};
use crate::domain::id::{BatchId, ChunkId, Token};
use std::time::Duration;

/// A chore that is due, leased.
#[derive(Debug)]
pub struct Chore {
    what: What,
    member: String,
    lease: String,
}

#[derive(Debug)]
enum What {
    /// An upload that may have been left.
    Upload(BatchId),
    /// A dispatch that may have died with staged answers.
    Stage(ChunkId, Token),
    /// An ended batch's spool, manifests and items.
    Spool(BatchId),
    /// What an accepted batch drew from its run.
    Draws(BatchId),
    /// A batch past its retention.
    Batch(BatchId),
}

impl What {
    fn parse(member: &str) -> Option<What> {
        let (kind, rest) = member.split_once(':')?;
        match kind {
            "upload" => BatchId::from_hex(rest).map(What::Upload),
            "spool" => BatchId::from_hex(rest).map(What::Spool),
            "draws" => BatchId::from_hex(rest).map(What::Draws),
            "batch" => BatchId::from_hex(rest).map(What::Batch),
            "stage" => {
                let (chunk, token) = rest.split_once(':')?;
                Some(What::Stage(ChunkId::parse(chunk)?, Token::from_stored(token)))
            }
            _ => None,
        }
    }
}

impl Store {
    /// The next chore that is due, if any.
    pub async fn take_chore(&self, lease: Duration) -> Result<Option<Chore>, StoreError> {
        let Some((member, lease)) = self.take(&self.keys.chores(), lease).await? else { return Ok(None) };
        match What::parse(&member) {
            Some(what) => Ok(Some(Chore { what, member, lease })),
            None => {
                self.dead_letter(&self.keys.chores(), &member).await?;
                Ok(None)
            }
        }
    }

    /// Does a chore, or puts it off for `patience`, two leases: the chore of a dispatch that is still at work must come before
    /// that of its batch's spool, which is due three leases after the end and takes the names of what was staged along.
    pub async fn do_chore(&self, chore: &Chore, patience: Duration) -> Result<(), StoreError> {
        fail_point!("chore_taken");
        let finished = match &chore.what {
            What::Upload(batch) => self.sweep_upload(*batch).await?,
            What::Stage(chunk, token) => self.sweep_stage(*chunk, token).await?,
            What::Spool(batch) => self.sweep_spool(*batch).await?,
            What::Draws(batch) => self.sweep_draws(*batch).await?,
            What::Batch(batch) => self.sweep_batch(*batch).await?,
        };
        fail_point!("chore_done");
        let queue = self.keys.chores();
        if finished {
            self.done(&queue, &chore.member, &chore.lease).await
        } else {
            self.postpone(&queue, &chore.member, &chore.lease, patience).await
        }
    }

    /// Puts off a chore that failed on something nobody can read, ever longer.
    pub async fn put_off_chore(&self, chore: &Chore, least: Duration) -> Result<(), StoreError> {
        let delay = self.note_unreadable(&format!("chore:{}", chore.member), least).await?;
        self.postpone(&self.keys.chores(), &chore.member, &chore.lease, delay).await
    }

    async fn sweep_upload(&self, batch: BatchId) -> Result<bool, StoreError> {
        let mut call = script!("lapse").prepare_invoke();
        call.key(self.keys.uploads()).arg(batch.hex()).arg(IDLE_MS).arg(self.skew_ms);
        let answer: String = call.invoke_async(&mut self.main.clone()).await?;
        match answer.as_str() {
            "busy" => Ok(false),
            "lapsed" => self.remove_upload(batch).await.map(|()| true),
            // Accepted, or lapsed by a sweeper that died while removing: a batch that exists keeps its pages.
            _ => {
                if self.remains(batch).await?.is_none() {
                    self.remove_upload(batch).await?;
                }
                Ok(true)
            }
        }
    }

    async fn sweep_stage(&self, chunk: ChunkId, token: &Token) -> Result<bool, StoreError> {
        let fence: Option<String> =
            redis::cmd("GET").arg(self.keys.fence(chunk)).query_async(&mut self.main.clone()).await?;
        if fence.as_deref() == Some(token.as_str()) {
            return Ok(false); // still at work
        }
        self.clear_stage(chunk, token).await?;
        self.end_staging(chunk, token).await.map(|()| true)
    }

    async fn sweep_spool(&self, batch: BatchId) -> Result<bool, StoreError> {
        let Some(progress) = self.remains(batch).await? else { return Ok(true) };
        // A chore whose sweeper died comes back after a minute, and needs the items to know what was staged.
        if self.has_stages(batch).await? {
            return Ok(false);
        }
        for page in 0..progress.pages {
            self.remove_open_page(batch, page).await?;
        }
        self.sweep_draws(batch).await?;
        let chunks = self.chunk_numbers(batch).await?;
        let names = |number| {
            let chunk = ChunkId { batch, number };
            [self.keys.items(chunk), self.keys.waiters(chunk)]
        };
        self.unlink(&(0..chunks).flat_map(names).collect::<Vec<_>>()).await.map(|()| true)
    }

    /// Pages still open keep what they drew: their commits give back what comes to nothing.
    async fn sweep_draws(&self, batch: BatchId) -> Result<bool, StoreError> {
        let progress = self.remains(batch).await?.filter(|progress| progress.run.is_some());
        for page in 0..progress.map_or(0, |progress| progress.pages) {
            self.settle_draws(batch, page).await?;
        }
        Ok(true)
    }

    async fn sweep_batch(&self, batch: BatchId) -> Result<bool, StoreError> {
        let Some(progress) = self.remains(batch).await? else { return Ok(true) };
        self.sweep_draws(batch).await?;
        self.remove_pages(batch, progress.pages).await?;
        self.remove_chunks(batch, self.chunk_numbers(batch).await?).await?;
        let mut zrem = redis::cmd("ZREM");
        zrem.arg(self.keys.team(&progress.team)).arg(batch.hex());
        zrem.query_async::<()>(&mut self.main.clone()).await?;
        self.unlink(&[self.keys.batch(batch), self.keys.stages(batch)]).await.map(|()| true)
    }

    pub(super) async fn chunk_numbers(&self, batch: BatchId) -> Result<u32, StoreError> {
        let mut ask = redis::cmd("HGET");
        ask.arg(self.keys.batch(batch)).arg("next_chunk");
        Ok(ask.query_async::<Option<u32>>(&mut self.main.clone()).await?.unwrap_or(0))
    }

    /// Removes pages 0 .. `pages`, open and sealed.
    pub(super) async fn remove_pages(&self, batch: BatchId, pages: u32) -> Result<(), StoreError> {
        for page in 0..pages {
            self.remove_open_page(batch, page).await?;
            // Frames accept wrote but did not live to enter into a directory.
            self.remove_row(|n| self.keys.sealed(batch, page, ACCEPT, n)).await?;
            self.remove_row(|n| self.keys.fragment(batch, page, ACCEPT, n)).await?;
            self.remove_row(|n| self.keys.unanswered(batch, page, ACCEPT, n)).await?;
            self.unlink(&[self.keys.draws(batch, page)]).await?;
        }
        self.remove_unanswered(batch).await?;
        let directory = self.keys.sealed_pages(batch);
        for (page, row) in self.directory(&directory).await? {
            self.remove_sealed(batch, page, &row).await?;
        }
        self.unlink(&[directory, self.keys.starts(batch)]).await
    }

    /// Removes frames from the first on until one is not there.
    pub(super) async fn remove_row(&self, name: impl Fn(u32) -> String) -> Result<(), StoreError> {
        let mut frame = 0;
        while redis::cmd("UNLINK").arg(name(frame)).query_async::<u8>(&mut self.main.clone()).await? == 1 {
            frame += 1;
        }
        Ok(())
    }

    /// Removes chunks 0 .. `chunks`.
    pub(super) async fn remove_chunks(&self, batch: BatchId, chunks: u32) -> Result<(), StoreError> {
        let names = |number| {
            let chunk = ChunkId { batch, number };
            let keys = &self.keys;
            [keys.chunk(chunk), keys.items(chunk), keys.fence(chunk), keys.said(chunk), keys.waiters(chunk)]
        };
        self.unlink(&(0..chunks).flat_map(names).collect::<Vec<_>>()).await
    }
}
