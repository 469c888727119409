//! Every key string of ours in Redis, one doc line each: who writes, who reads, when it dies.
//!
//! Keys carry a hash tag, so that a script or MULTI never spans two slots of a cluster: `{<namespace>}`, `{acct:<account>}`, or
//! `{sys}` for what is neither's.

use crate::domain::{
    id::{BatchId, ChunkId, Token},
    key::CacheKey,
};
use sha2::{Digest, Sha256};

/// The keys of one namespace.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    pub fn new(namespace: &str) -> Keys {
        Keys { prefix: format!("{{{namespace}}}:") }
    }

    /// What every key of the namespace begins with; scripts build the keys of queue members from it.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    fn of(&self, rest: std::fmt::Arguments<'_>) -> String {
        format!("{}{rest}", self.prefix)
    }

    // The cache.

    /// An answer. Written by a commit (renamed from its staged name) or the janitor, read at accept; dies by the cache's TTL.
    pub fn cached(&self, key: &CacheKey) -> String {
        self.of(format_args!("c:{key}"))
    }

    /// Whether a key is an answer's, of whatever namespace: for looks at the cache as a whole.
    pub fn is_cached(key: &str) -> bool {
        key.strip_prefix('{').and_then(|rest| rest.split_once("}:")).is_some_and(|(_, rest)| rest.starts_with("c:"))
    }

    /// Which chunk will answer a question that is in flight, or which upload: the chunk's name, or the batch's alone. Written
    /// by accept, moved by commits and by whoever takes a question over; removed once there is an outcome.
    pub fn mark(&self, key: &CacheKey) -> String {
        self.of(format_args!("m:{key}"))
    }

    /// How large answers turned out (hash: endpoint and model -> running mean and count). Written after commits, read at
    /// accept; dies 90 days after the last answer.
    pub fn sizes(&self) -> String {
        self.of(format_args!("sizes"))
    }

    /// Bytes promised to all batches that wait for answers: the sum of their `reserved`. Written by accept, by commits, by
    /// the script that ends a batch and, where that sum is another, by the reconciler; gone while nothing is promised.
    pub fn reserved(&self) -> String {
        self.of(format_args!("reserved"))
    }

    /// An answer on its way in. Written by the harvest under its dispatch token; renamed by the commit, else removed by
    /// the chore of its dispatch.
    pub fn staged(&self, token: &Token, key: &CacheKey) -> String {
        self.of(format_args!("s:{token}:{key}"))
    }

    /// As [`Keys::staged`], of a chunk that is asked one by one: under the chunk's name, for the next dispatch goes on where
    /// this one ended. Written as answers come; renamed by the commit, else removed by its chore.
    pub fn staged_for(&self, chunk: ChunkId, key: &CacheKey) -> String {
        self.of(format_args!("s:{chunk}:{key}"))
    }

    /// An entry whose stored key was not the asked one, set aside for an operator. Written at look-up; dies with its TTL.
    pub fn suspect(&self, key: &CacheKey) -> String {
        self.of(format_args!("suspect:{key}"))
    }

    // An account: another hash tag, for all namespaces have it in common.

    /// Whether an account is paused or held back. Written by whoever calls it, read before every call; dies once idle for a week.
    pub fn gate(account: &str) -> String {
        format!("{{acct:{account}}}:gate")
    }

    /// What an account has enqueued of a model, and may have. Written by submits and commits; dies once idle for a month.
    pub fn budget(account: &str, model: &str) -> String {
        format!("{{acct:{account}}}:tokens:{model}")
    }

    /// Whose turn it is to create where batches bear no label. Written by submits and doubts; dies once idle for a month.
    pub fn creates(account: &str) -> String {
        format!("{{acct:{account}}}:creates")
    }

    // The Redis as a whole: a hash tag of its own.

    /// Where this Redis is at home (hash: deployment, since, and `place:<place>` for each that was seen). Written by the
    /// first gateway that works here and by `batchgate adopt`, read by every gateway each second; lives for ever.
    pub fn home() -> &'static str {
        "{sys}:home"
    }

    /// The mark of a copy (hash: at, source). Written by `scripts/restore`, read with [`Keys::home`]; removed by
    /// `batchgate adopt`.
    pub fn restored() -> &'static str {
        "{sys}:restored"
    }

    /// Some gateway works here now: the name of its deployment. Written each second by those that do, read by
    /// `batchgate adopt`; dies ten seconds after the last.
    pub fn at_work() -> &'static str {
        "{sys}:at_work"
    }

    /// What is paused by hand (hash: `all`, `provider:<name>` or `team:<name>` -> who and since when). Written by an admin's
    /// pause, read before every create and by rounds of online prompts each second; a field goes when it is resumed.
    pub fn pauses() -> &'static str {
        "{sys}:pauses"
    }

    /// The namespaces gateways work in, or worked in (set). Written by every gateway at its start and when its
    /// configuration is read again, read by all of them every few seconds; never dies: what is in a namespace is to be
    /// served even if no configuration names it any more.
    pub fn namespaces() -> &'static str {
        "{sys}:namespaces"
    }

    /// When each team's keys were last used (hash: team and name of the key -> Unix ms). Written by the door at most once a
    /// minute and key, read by the list of keys; never dies: a field for every key there ever was.
    pub fn key_uses() -> String {
        "{sys}:keys".to_owned()
    }

    /// Which chunk, of whatever namespace, an unlabelled batch belongs to, by its create's own answer or by its tag. Read by
    /// doubts; dies after 31 days, with the provider's results.
    pub fn whose(account: &str, remote: &str) -> String {
        format!("{{acct:{account}}}:r:{remote}")
    }

    // A batch.

    /// The facts of a batch (hash). Written by accept, then field by field by commit, seal and cancel; dies at retention.
    pub fn batch(&self, batch: BatchId) -> String {
        self.of(format_args!("b:{}", batch.hex()))
    }

    /// Prompts of a JSON body as they came, until its other members are known. Written and removed by accept.
    pub fn raw(&self, batch: BatchId, number: u32) -> String {
        self.of(format_args!("b:{}:raw:{number}", batch.hex()))
    }

    /// Which results stand on a page that is not sealed yet. Written by accept; removed when the page is sealed.
    pub fn manifest(&self, batch: BatchId, page: u32) -> String {
        self.of(format_args!("b:{}:m:{page}", batch.hex()))
    }

    /// Bodies of a page's prompts that must be asked. Written by accept, read by submit; removed when the page is sealed.
    pub fn spool(&self, batch: BatchId, page: u32) -> String {
        self.of(format_args!("b:{}:s:{page}", batch.hex()))
    }

    /// Which fragments of an open page are live (hash: source -> name and frame count). Written by accept and by commits,
    /// read by readers and the sealer; removed when the page is sealed.
    pub fn fragments(&self, batch: BatchId, page: u32) -> String {
        self.of(format_args!("b:{}:f:{page}", batch.hex()))
    }

    /// Some outcomes of an open page, keyed. Written by accept and by harvests; removed when the page is sealed, or with
    /// its dispatch if that never committed.
    pub fn fragment(&self, batch: BatchId, page: u32, name: &str, frame: u32) -> String {
        self.of(format_args!("b:{}:f:{page}:{name}:{frame}", batch.hex()))
    }

    /// Which pages are sealed (hash: page -> name and frame count). Written by accept and the sealer; dies at retention.
    pub fn sealed_pages(&self, batch: BatchId) -> String {
        self.of(format_args!("b:{}:pages", batch.hex()))
    }

    /// Results of a sealed page in order. Written once, never changed; dies at retention.
    pub fn sealed(&self, batch: BatchId, page: u32, name: &str, frame: u32) -> String {
        self.of(format_args!("b:{}:p:{page}:{name}:{frame}", batch.hex()))
    }

    /// Which sealed pages left something unanswered (hash: page -> name and frame count). Written with the page by accept
    /// and the seal script, read by a retry; dies at retention.
    pub fn unanswered_pages(&self, batch: BatchId) -> String {
        self.of(format_args!("b:{}:unanswered", batch.hex()))
    }

    /// Results of a sealed page that ended without an answer, each with the body to ask again. Written by accept, and by
    /// the sealer with a short time to live that the seal script takes away; read by a retry; dies at retention.
    pub fn unanswered(&self, batch: BatchId, page: u32, name: &str, frame: u32) -> String {
        self.of(format_args!("b:{}:r:{page}:{name}:{frame}", batch.hex()))
    }

    /// Dispatches that may have left something staged (set: chunk number and token). Written with their chores and removed
    /// with them; until it is gone the items of the batch's chunks stay, for they say what was staged.
    pub fn stages(&self, batch: BatchId) -> String {
        self.of(format_args!("b:{}:stages", batch.hex()))
    }

    /// Index of each page's first result (u32, big endian). Written by accept, read to find an offset; dies at retention.
    pub fn starts(&self, batch: BatchId) -> String {
        self.of(format_args!("b:{}:starts", batch.hex()))
    }

    /// Batches of a team by creation time (sorted set). Written by accept, read by the list; entries die at retention.
    pub fn team(&self, team: &str) -> String {
        self.of(format_args!("t:{team}"))
    }

    /// Batches that have not ended (sorted set by creation). Written by accept and by the script that ends a batch.
    pub fn open_batches(&self) -> String {
        self.of(format_args!("open"))
    }

    /// The same of one team alone: what its bounds are counted over. Written by accept and by the script that ends a batch;
    /// accept takes out what it finds ended or gone.
    pub fn team_open(&self, team: &str) -> String {
        self.of(format_args!("open:{team}"))
    }

    /// The right of an upload to its pages (sorted set by last progress). Written by accept, removed by its last script,
    /// or by the sweeper once idle.
    pub fn uploads(&self) -> String {
        self.of(format_args!("uploads"))
    }

    // Runs.

    /// What every run record begins with; scripts add the attempt and a bucket of questions: `<attempt>:<bucket>` (hash:
    /// the numbers of its questions and who holds them) and `<attempt>:<bucket>:free` (sorted set: numbers given back).
    /// Written by accept, by commits whose results came to nothing, and by whoever removes a broken upload; read by accept.
    /// Both die one retention after the latest deadline of the batches that drew from them.
    pub fn runs(&self) -> String {
        self.of(format_args!("n:"))
    }

    /// What the results of a page drew from their run (hash: `index.sample` -> who asked what, and its number). Written by
    /// accept, read by whoever gives numbers back; a row goes as its number is given back, all of it with a broken upload,
    /// or once the page is sealed and its batch has ended (at once, if accept sealed it).
    pub fn draws(&self, batch: BatchId, page: u32) -> String {
        self.of(format_args!("b:{}:d:{page}", batch.hex()))
    }

    // Uploads.

    /// How far an upload is (hash): what the sweeper must remove if it breaks off. Dies with the upload.
    pub fn upload(&self, batch: BatchId) -> String {
        self.of(format_args!("u:{}", batch.hex()))
    }

    /// What an Idempotency-Key was answered. Written by accept; dies after 24 hours, a lock of work in hand after 90 s.
    pub fn idempotency(&self, team: &str, key: &str) -> String {
        let digest = Sha256::digest(key.as_bytes());
        let hex = digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        self.of(format_args!("i:{team}:{hex}"))
    }

    // Chunks.

    /// The facts of a chunk (hash). Written by accept or a commit, then by fenced transitions; dies at retention.
    pub fn chunk(&self, chunk: ChunkId) -> String {
        self.of(format_args!("k:{chunk}"))
    }

    /// The same of another namespace's chunk, by the two halves of its name around `}:`.
    pub fn chunk_of(namespace: &str, chunk: &str) -> String {
        format!("{namespace}}}:k:{chunk}")
    }

    /// The questions of a chunk. Written with the chunk; removed once its batch has ended.
    pub fn items(&self, chunk: ChunkId) -> String {
        self.of(format_args!("k:{chunk}:items"))
    }

    /// What a server said so far of the questions of a chunk that is asked one by one (hash: key -> word). Written as
    /// answers come, read by the next dispatch; removed by the commit.
    pub fn said(&self, chunk: ChunkId) -> String {
        self.of(format_args!("k:{chunk}:said"))
    }

    /// Chunks of other batches that wait for this one's answers (set). Written by them, read by its commits; removed with
    /// the chunk's items.
    pub fn waiters(&self, chunk: ChunkId) -> String {
        self.of(format_args!("k:{chunk}:waiters"))
    }

    /// The token of the dispatch that may change the chunk. Written by claim, removed by release and commit.
    pub fn fence(&self, chunk: ChunkId) -> String {
        self.of(format_args!("k:{chunk}:fence"))
    }

    /// Which chunk a provider's batch belongs to, by its create's own answer. Dies after 31 days, with the provider's results.
    pub fn remote(&self, remote: &str) -> String {
        self.of(format_args!("r:{remote}"))
    }

    /// What is over and done with of a provider's batch: read by its chunk's worker (written by its commit), or by the janitor
    /// (kept, another's, gone). Read by the janitor; dies after 31 days, with the provider's results.
    pub fn noted(&self, remote: &str) -> String {
        self.of(format_args!("j:{remote}"))
    }

    /// Where the janitor's walk through an account's batches goes on. Written and read by the janitor; dies after a day.
    pub fn walk(&self, account: &str) -> String {
        self.of(format_args!("walk:{account}"))
    }

    /// Chunks that wait for a time (sorted set by due time): back-off and the poll schedule.
    pub fn delayed(&self) -> String {
        self.of(format_args!("delayed"))
    }

    /// Chunks in a worker's hands (sorted set by expiry of the lease).
    pub fn claimed(&self) -> String {
        self.of(format_args!("claimed"))
    }

    /// Chunks of one group that wait for one thing (sorted set by deadline): they may be woken together. Where they wait in
    /// turns (tokens, creates) the group's name ends in the team. Written by transitions, emptied by them, by the wake-up
    /// and by the commit that settles a chunk.
    pub fn held(&self, group: &str) -> String {
        self.of(format_args!("held:{group}"))
    }

    /// Lanes that have ready chunks (set): one for each team and account, and one for what a team joins. The ready chunks of
    /// one lane are `ready:<lane>` (sorted set: what is under way before what is to be sent, that before what is of low
    /// priority, each by deadline). Both are written by the claim script and by repairs.
    pub fn lanes(&self) -> String {
        self.of(format_args!("lanes"))
    }

    /// Chunks that are under way (set: `<chunk> <prompts> <team>`). Written and read by the claim script, which takes out what
    /// is settled, a few at each claim.
    pub fn under_way(&self) -> String {
        self.of(format_args!("under_way"))
    }

    /// How many prompts each team has under way (hash: team -> sum of [`Keys::under_way`]); who was ever claimed for stands
    /// here. Written by the claim script, read by it and by whoever wakes in turns; dies 40 days after the last claim.
    pub fn shares(&self) -> String {
        self.of(format_args!("shares"))
    }

    /// Pages a commit touched (sorted set by due time; a lease moves it). Written by commits and the sealer.
    pub fn seal(&self) -> String {
        self.of(format_args!("seal"))
    }

    /// What the sweeper has to do and when (sorted set by due time). Written by whoever leaves something behind.
    pub fn chores(&self) -> String {
        self.of(format_args!("chores"))
    }

    /// Whose turn a job is that one process does for all. Written by whoever is first; dies when the next turn is due.
    pub fn turn(&self, job: &str) -> String {
        self.of(format_args!("turn:{job}"))
    }

    /// Where the reconciler's last pass ended (hash: rank among the open batches, cursor over all keys). Dies after a day.
    pub fn reconciler(&self) -> String {
        self.of(format_args!("reconciler"))
    }

    /// How often something could not be read (counter): a chunk, a page, a chore. Written by whoever failed at it, read by
    /// the next; dies a day after the last time.
    pub fn unreadable(&self, what: &str) -> String {
        self.of(format_args!("unreadable:{what}"))
    }

    /// What nobody could read: queue members, and names of records (list, at most 1,000). For an operator.
    pub fn dead_letters(&self) -> String {
        self.of(format_args!("dead"))
    }
}
