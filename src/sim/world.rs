//! All state of the simulator, and the way back to its start.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
};

use serde::Deserialize;
use serde_json::{Map, Value};
use tokio_util::task::TaskTracker;

use super::{
    SimConfig,
    batch::Batch,
    clock::Clock,
    faults::{Faults, glob},
    ledger::{Ledger, Question, Report},
    openai::file::StoredFile,
    problem::Provider,
    settings::{Answers, Settings},
    spool::Spool,
};

/// What a start script may say; `reset` returns to it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Script {
    settings: Map<String, Value>,
    faults: Vec<Value>,
    /// Account name to key.
    keys: Map<String, Value>,
}

pub(crate) struct Sim {
    pub(crate) clock: Clock,
    pub(crate) spool: Spool,
    /// Key to account.
    pub(crate) keys: HashMap<String, String>,
    script: Script,
    answers: Option<Answers>,
    world: Mutex<World>,
    /// Reading of inputs and writing of results; the clock only moves on once these are through.
    pub(crate) background: TaskTracker,
    /// Calls go on when their caller has gone, as on a real server.
    pub(crate) calls: TaskTracker,
}

impl Sim {
    pub(crate) fn new(config: SimConfig) -> anyhow::Result<Arc<Self>> {
        let script: Script = serde_json::from_value(config.script.unwrap_or_else(|| Value::Object(Map::new())))?;
        let mut keys: HashMap<_, _> = config.keys.into_iter().map(|(account, key)| (key, account)).collect();
        if keys.is_empty() {
            let scripted =
                script.keys.iter().filter_map(|(account, key)| Some((key.as_str()?.to_owned(), account.clone())));
            keys = scripted.collect();
        }
        if keys.is_empty() {
            keys.insert("sim-key".into(), "default".into());
        }
        let world = World::start(&script, config.answers, Ledger::default())?;
        let sim = Self {
            clock: Clock::start(),
            spool: Spool::create(&config.spool)?,
            keys,
            script,
            answers: config.answers,
            world: Mutex::new(world),
            background: TaskTracker::new(),
            calls: TaskTracker::new(),
        };
        sim.background.close(); // so that it can be waited for; it still takes tasks
        Ok(Arc::new(sim))
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("nothing panics while it holds the world")
    }

    /// Let background work end and bring every batch up to the current time.
    pub(crate) async fn settle(&self) {
        self.background.wait().await;
        self.world().settle_all(self.clock.now());
    }

    /// Run `work` on a thread for such.
    pub(crate) async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.background.spawn_blocking(work).await.expect("background work does not panic")
    }

    pub(crate) async fn reset(&self) -> anyhow::Result<()> {
        self.settle().await;
        let mut world = self.world();
        *world = World::start(&self.script, self.answers, world.ledger.wiped())?;
        self.clock.reset();
        self.spool.clear()?;
        Ok(())
    }
}

/// Who looks for which batch, and when.
#[derive(Clone, Copy)]
pub(crate) struct Seeker<'a> {
    pub(crate) provider: Provider,
    pub(crate) account: &'a str,
    pub(crate) id: &'a str,
    pub(crate) now: f64,
}

pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) faults: Faults,
    pub(crate) ledger: Ledger,
    /// Oldest first. A batch is taken out while it settles, for it looks at the others then.
    batches: Vec<Option<Batch>>,
    batch_places: HashMap<String, usize>,
    /// Oldest first.
    pub(crate) files: Vec<StoredFile>,
    file_places: HashMap<String, usize>,
}

impl World {
    fn start(script: &Script, answers: Option<Answers>, ledger: Ledger) -> anyhow::Result<Self> {
        let mut settings = Settings::default().patched(&Value::Object(script.settings.clone()))?;
        if let Some(answers) = answers {
            settings.common.answers = answers;
        }
        let mut faults = Faults::default();
        faults.add(&Value::Array(script.faults.clone())).map_err(anyhow::Error::msg)?;
        Ok(Self {
            settings,
            faults,
            ledger,
            batches: Vec::new(),
            batch_places: HashMap::new(),
            files: Vec::new(),
            file_places: HashMap::new(),
        })
    }

    pub(crate) fn add_batch(&mut self, batch: Batch) {
        self.batch_places.insert(batch.life().id.clone(), self.batches.len());
        self.batches.push(Some(batch));
    }

    pub(crate) fn batches(&self) -> impl DoubleEndedIterator<Item = &Batch> {
        self.batches.iter().flatten()
    }

    /// A batch that this account may see, up to date.
    pub(crate) fn find_batch(&mut self, seeker: Seeker<'_>) -> Option<&mut Batch> {
        let Seeker { provider, account, id, now } = seeker;
        let place = *self.batch_places.get(id)?;
        self.settle_at(place, now);
        self.batches[place].as_mut().filter(|batch| {
            let life = batch.life();
            life.provider == provider && life.account == account && life.visible(now)
        })
    }

    /// Let `work` have a batch that this account may see, up to date, beside the rest of the world.
    pub(crate) fn with_batch<T>(
        &mut self,
        seeker: Seeker<'_>,
        work: impl FnOnce(&mut Batch, &mut Self) -> T,
    ) -> Option<T> {
        self.find_batch(seeker)?;
        let place = *self.batch_places.get(seeker.id)?;
        let mut batch = self.batches[place].take()?;
        let result = work(&mut batch, self);
        self.batches[place] = Some(batch);
        Some(result)
    }

    /// The batches that an account can list, newest first, up to date.
    pub(crate) fn list_batches(&mut self, provider: Provider, account: &str, now: f64) -> Vec<&Batch> {
        self.settle_all(now);
        let mine = self.batches().rev().filter(|batch| {
            let life = batch.life();
            life.provider == provider && life.account == account && life.listed(now)
        });
        mine.collect()
    }

    pub(crate) fn settle_all(&mut self, now: f64) {
        for place in 0..self.batches.len() {
            self.settle_at(place, now);
        }
    }

    fn settle_at(&mut self, place: usize, now: f64) {
        if let Some(mut batch) = self.batches[place].take() {
            batch.settle(now, self);
            self.batches[place] = Some(batch);
        }
    }

    pub(crate) fn add_file(&mut self, file: StoredFile) {
        self.file_places.insert(file.id.clone(), self.files.len());
        self.files.push(file);
    }

    /// Any file of that id, whoever may see it.
    pub(crate) fn file(&mut self, id: &str) -> Option<&mut StoredFile> {
        self.files.get_mut(*self.file_places.get(id)?)
    }

    /// A file that this account may see.
    pub(crate) fn find_file(&mut self, account: &str, id: &str, now: f64) -> Option<&mut StoredFile> {
        self.file(id).filter(|file| file.account == account && file.present(now))
    }

    /// Where an upload is on disk, to look into it.
    pub(crate) fn upload_path(&mut self, id: &str) -> Option<PathBuf> {
        self.file(id)?.upload_path()
    }

    pub(crate) fn unknown_model(&self, model: &str) -> bool {
        self.settings.common.unknown_models.iter().any(|pattern| glob(pattern, model))
    }

    pub(crate) fn report(&self, question: &Question) -> Report {
        let asked = |batch: &&Batch| question.batch.as_ref().is_none_or(|id| batch.life().id == *id);
        Report {
            done: self.batches().filter(asked).filter_map(|batch| batch.life().done.clone()).collect(),
            online: self.ledger.online.clone(),
            http: self.ledger.http.clone(),
            batches: self.batches.len(),
            peak_in_flight: self.ledger.peak_in_flight.clone(),
        }
    }
}
