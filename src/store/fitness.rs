//! Whether this Redis may be trusted with jobs and paid answers: asked at the start and every few seconds from then on, for
//! another one may answer behind the same name after a failover. Asks INFO alone, which hosted servers allow.

use super::{Store, StoreError};
use redis::{ErrorKind, ServerErrorKind};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

/// What was found out of each node, shared by all namespaces.
#[derive(Clone, Default)]
pub(super) struct Fitness(Arc<Mutex<BTreeMap<String, Findings>>>);

#[derive(Default)]
struct Findings {
    run_id: Option<String>,
    /// What it acknowledges outlives a crash of its own.
    durable: bool,
    /// Why nothing is begun on this Redis.
    unfit: Option<String>,
    /// What the log has been told of this one.
    told: BTreeSet<&'static str>,
}

impl Store {
    /// Why nothing new may be begun on this Redis, until somebody puts it right.
    pub fn unfit(&self) -> Option<String> {
        let findings = self.fitness.0.lock().unwrap_or_else(PoisonError::into_inner);
        findings.get(&self.node()).and_then(|findings| findings.unfit.clone())
    }

    /// Looks at the policy and at what a crash of Redis would cost, and says what is new. In a cluster, of the node that
    /// holds this namespace.
    pub async fn check(&self) -> Result<(), StoreError> {
        let info = match redis::cmd("INFO").query_async::<String>(&mut self.main.clone()).await {
            Ok(info) => Some(info),
            Err(error) if is_forbidden(&error) => None,
            Err(error) => return Err(error.into()),
        };
        let facts = info.as_deref().map(facts);
        let mut nodes = self.fitness.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.entry(self.node()).or_default().judge(facts.as_ref());
        if facts.is_some() {
            let (durable, unfit) = (nodes.values().all(|n| n.durable), nodes.values().any(|n| n.unfit.is_some()));
            metrics::gauge!("batchgate_redis_durable").set(f64::from(u8::from(durable)));
            metrics::gauge!("batchgate_redis_unfit").set(f64::from(u8::from(unfit)));
        }
        Ok(())
    }
}

/// The server does not let us ask.
pub(super) fn is_forbidden(error: &redis::RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) || error.to_string().contains("unknown command")
}

fn facts(info: &str) -> HashMap<&str, &str> {
    info.lines().filter_map(|line| line.trim_end().split_once(':')).collect()
}

impl Findings {
    fn judge(&mut self, facts: Option<&HashMap<&str, &str>>) {
        let Some(facts) = facts else {
            if self.told.insert("unseen") {
                tracing::warn!(
                    "this redis does not let us read INFO: its maxmemory-policy, its memory and its append-only file cannot be \
                     checked; allow the command, or see to it that they are noeviction, bounded and on"
                );
            }
            return;
        };
        let fact = |name: &str| facts.get(name).copied().unwrap_or_default();
        let run_id = Some(fact("run_id").to_owned());
        if self.run_id != run_id {
            if self.run_id.is_some() {
                tracing::warn!("another redis process answers: restarted, or a failover");
            }
            self.run_id = run_id;
            self.told.clear();
        }
        self.judge_policy(fact("maxmemory_policy"));
        let (file, replicas) = (fact("aof_enabled") != "0", fact("connected_slaves"));
        if !file && self.told.insert("volatile") {
            tracing::warn!(
                replicas,
                "this redis has no append-only file: a crash of redis loses jobs and paid answers; set appendonly yes"
            );
        }
        if fact("aof_last_write_status") == "err" && self.told.insert("disk") {
            tracing::error!("this redis cannot write its append-only file: make room on its disk");
        }
        self.durable = file && fact("aof_last_write_status") != "err";
    }

    fn judge_policy(&mut self, policy: &str) {
        let unfit = policy
            .starts_with("allkeys-")
            .then(|| format!("{policy} evicts jobs; set it to noeviction (CONFIG SET maxmemory-policy noeviction)"));
        if self.unfit != unfit {
            match &unfit {
                Some(why) => tracing::error!(maxmemory_policy = why, "nothing new is begun on this redis"),
                None => tracing::info!(maxmemory_policy = policy, "this redis is fit again"),
            }
            self.unfit = unfit;
        }
        if policy.starts_with("volatile-") && self.told.insert("evicts") {
            tracing::warn!(
                policy,
                "this redis may evict cached and staged answers under memory pressure: they are asked, and paid, again; \
                 set maxmemory-policy noeviction"
            );
        }
    }
}
