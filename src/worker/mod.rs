//! DOOR: time. Claims what is due and steps it: claim -> step -> release. Decides nothing about batches.
//!
//! Take a permit before claiming, never hold more than can start now: first the narrow ones, a seat at each server that
//! is asked one by one, then the wide one, a slot of the worker. A chunk that has a seat gives the slot back: what a slow
//! server holds up is its own chunks alone. Every step runs in a task of its own, so that a
//! panic in one is an outcome and not the end of the loop; the claim's guard owns the renewal.

mod guard;
pub mod home;
mod rounds;
mod step;
mod trouble;

use crate::{
    domain::{home::Standing, id::Token},
    lifecycle::{Heartbeats, Tasks},
    pipeline::{Gateway, janitor, online::desk::Seat, poison, reconcile, room, seal, spaces::Spaces},
    store::{StoreError, queue::Claim},
};
use futures_util::{FutureExt, future::BoxFuture};
use guard::{Busy, Guard};
use rounds::Rounds;
use std::{sync::Arc, time::Duration};
use tokio::sync::{Notify, Semaphore, watch};
use trouble::Trouble;

/// Longest sleep of a loop that found nothing to do.
const IDLE: Duration = Duration::from_millis(500);
/// Shortest: right after there was something.
const BUSY: Duration = Duration::from_millis(20);
/// Longest time from the start to the first pass of the janitor: a restart is when most is to be found.
const FIRST_PASS: Duration = Duration::from_secs(30);
/// Longest time between two looks whose turn a job of the clock is, and between two ticks of a long one.
const TURN: Duration = Duration::from_secs(5);
/// Between two looks at whether Redis may be trusted.
const CARE: Duration = Duration::from_secs(5);

/// A round of the claim loop is one script; while all slots are taken it goes round all the same.
const CLAIM_ROUND: Duration = Duration::from_secs(60);
/// A page is read, packed and written in a few commands.
const SEAL_ROUND: Duration = Duration::from_secs(120);
/// A chore may remove a million prompts, page by page.
const SWEEP_ROUND: Duration = Duration::from_secs(300);

/// Starts the worker's loops; they end when the tasks are told to stop. Each serves all namespaces.
fn start(spaces: &Arc<Spaces>, tasks: &Tasks, beats: &Heartbeats, workers: usize) {
    beats.expect("claim", CLAIM_ROUND);
    beats.expect("seal", SEAL_ROUND);
    beats.expect("sweep", SWEEP_ROUND);
    let (slots, main) = (Arc::new(Semaphore::new(workers)), Arc::clone(spaces));
    let (claim_tasks, claim_beats) = (tasks.clone(), beats.clone());
    tasks.spawn_loop("claim", async move { claim_loop(&main, slots, claim_tasks, claim_beats).await });
    let (main, seal_tasks, seal_beats) = (Arc::clone(spaces), tasks.clone(), beats.clone());
    tasks.spawn_loop("seal", async move { seal_loop(&main, &seal_tasks, &seal_beats).await });
    let (main, sweep_tasks, sweep_beats) = (Arc::clone(spaces), tasks.clone(), beats.clone());
    tasks.spawn_loop("sweep", async move { sweep_loop(&main, &sweep_tasks, &sweep_beats).await });
    let (main, janitor_tasks, janitor_beats) = (Arc::clone(spaces), tasks.clone(), beats.clone());
    tasks.spawn_loop("janitor", async move { janitor_loop(&main, &janitor_tasks, &janitor_beats).await });
    if spaces.common().settings.reconcile != reconcile::Mode::Off {
        let (main, own_tasks, own_beats) = (Arc::clone(spaces), tasks.clone(), beats.clone());
        tasks.spawn_loop("reconcile", async move { reconcile_loop(&main, &own_tasks, &own_beats).await });
    }
}

/// One process of all looks, each time.
async fn reconcile_loop(spaces: &Arc<Spaces>, tasks: &Tasks, beats: &Heartbeats) {
    let (every, mut trouble) = (spaces.common().settings.reconcile_every, Trouble::of("reconcile"));
    while !tasks.stopping() {
        let mut done = Ok(());
        for gateway in spaces.all() {
            beats.tick("reconcile");
            done = reconcile_in_turn(&gateway, every).await.and(done);
        }
        match done {
            Ok(()) => {
                trouble.over();
                tasks.sleep((every / 2).min(TURN)).await;
            }
            Err(error) => trouble.wait(&error, tasks).await,
        }
    }
}

async fn reconcile_in_turn(gateway: &Gateway, every: Duration) -> Result<(), StoreError> {
    if gateway.store.turn("reconcile", every).await? {
        let pass = reconcile::pass(gateway).await?;
        tracing::debug!(batches = pass.batches, findings = pass.findings, repairs = pass.repairs, "reconciled");
    }
    Ok(())
}

/// Looks after Redis, in every process: its policy and durability, which namespaces it holds, and the room the cache
/// takes. Ends with the tasks.
pub fn care(spaces: &Arc<Spaces>, standing: &watch::Receiver<Standing>, tasks: &Tasks, beats: &Heartbeats) {
    let (spaces, standing, own, beats) = (Arc::clone(spaces), standing.clone(), tasks.clone(), beats.clone());
    tasks.spawn_loop("care", async move { care_loop(&spaces, &standing, &own, &beats).await });
}

async fn care_loop(spaces: &Spaces, standing: &watch::Receiver<Standing>, tasks: &Tasks, beats: &Heartbeats) {
    let mut trouble = Trouble::of("care");
    while !tasks.stopping() {
        beats.tick("care");
        let works = *standing.borrow() == Standing::Original;
        let mut done = spaces.learn(works).await;
        for gateway in spaces.one_per_node() {
            done = gateway.store.check().await.and(done);
        }
        done = room::trim_cache(spaces).await.and(done);
        match done {
            Ok(()) => {
                trouble.over();
                tasks.sleep(CARE).await;
            }
            Err(error) => trouble.wait(&error, tasks).await,
        }
    }
}

async fn claim_loop(spaces: &Arc<Spaces>, slots: Arc<Semaphore>, tasks: Tasks, beats: Heartbeats) {
    let (mut idle, mut trouble, mut rounds) = (BUSY, Trouble::of("claim"), Rounds::of(spaces));
    while !tasks.stopping() {
        beats.tick("claim");
        let Ok(permit) = Arc::clone(&slots).try_acquire_owned() else {
            tasks.sleep(BUSY).await;
            continue;
        };
        let seats = spaces.common().seats();
        match claim(&mut rounds, &seats.full).await {
            Ok(Some((gateway, claim))) => {
                idle = BUSY;
                trouble.over();
                metrics::counter!("batchgate_claims_total").increment(1);
                metrics::counter!("batchgate_reclaims_total").increment(u64::from(claim.reclaims > 0));
                let busy = Busy::begin();
                let seat = seats.keep(&claim.account);
                let permit = Some(permit).filter(|_| seat.is_none());
                let step_tasks = tasks.clone();
                tasks.spawn(async move {
                    work(&gateway, &step_tasks, claim, seat).await;
                    drop((busy, permit));
                });
            }
            Ok(None) => {
                trouble.over();
                drop((seats, permit));
                idle = rest(&tasks, &spaces.common().wake.chunks, idle).await;
            }
            Err(error) => {
                drop(seats);
                trouble.wait(&error, &tasks).await;
            }
        }
    }
}

/// A chunk that is due, of the first namespace that has one. One that cannot be asked keeps no other from being asked.
async fn claim(rounds: &mut Rounds, full: &[String]) -> Result<Option<(Arc<Gateway>, Claim)>, StoreError> {
    let mut done = Ok(None);
    for (at, gateway) in rounds.order().await {
        if gateway.store.unfit().is_some() {
            continue;
        }
        let claimed = gateway.store.claim(fresh_token(), gateway.settings.lease, full).await;
        rounds.answered(&gateway, !is_away(&claimed));
        match claimed {
            Ok(None) => {}
            Ok(Some(claim)) => {
                rounds.had(at);
                return Ok(Some((gateway, claim)));
            }
            Err(error) => done = Err(error),
        }
    }
    done
}

/// Steps one claimed chunk until it is given back, and gives the claim back whatever happens.
async fn work(gateway: &Arc<Gateway>, tasks: &Tasks, claim: Claim, seat: Option<Seat>) {
    let chunk = claim.lease.chunk;
    let guard = Guard::hold(gateway, tasks, &claim.lease);
    let stepping = {
        let (gateway, claim, drain) = (Arc::clone(gateway), claim.clone(), tasks.stop_order());
        tasks.spawn(async move { step::run(&gateway, &claim, seat, &drain).await })
    };
    let abort = stepping.abort_handle();
    tokio::select! {
        done = stepping => match done {
            Ok(Ok(())) => {}
            Ok(Err(error @ StoreError::Away(_))) => failed(&claim, &error.to_string()),
            Ok(Err(error @ StoreError::Corrupt { .. })) => {
                failed(&claim, &error.to_string());
                strike(gateway, &claim).await;
                if let Err(error) = poison::put_off(gateway, &claim).await {
                    tracing::warn!(%chunk, %error, "put off a chunk that cannot be read");
                }
            }
            Err(panic) => {
                failed(&claim, &panic.to_string());
                strike(gateway, &claim).await;
            }
        },
        () = guard.lost() => {
            tracing::warn!(%chunk, "lost the claim; the step stops");
            abort.abort();
        }
    }
}

fn failed(claim: &Claim, error: &str) {
    tracing::error!(chunk = %claim.lease.chunk, error, "step failed; the claim runs out and it is tried again");
    metrics::counter!("batchgate_steps_failed_total").increment(1);
}

/// The chunk itself is to blame, as far as one can see.
async fn strike(gateway: &Gateway, claim: &Claim) {
    if let Err(error) = gateway.store.strike(&claim.lease, poison::STRIKE).await {
        tracing::warn!(chunk = %claim.lease.chunk, %error, "count a failed step");
    }
}

async fn seal_loop(spaces: &Arc<Spaces>, tasks: &Tasks, beats: &Heartbeats) {
    let (mut idle, mut trouble, mut rounds) = (BUSY, Trouble::of("seal"), Rounds::of(spaces));
    while !tasks.stopping() {
        beats.tick("seal");
        match first_of(&mut rounds, |gateway| seal_next(gateway).boxed()).await {
            Ok(found) => {
                trouble.over();
                idle = if found { BUSY } else { rest(tasks, &spaces.common().wake.pages, idle).await };
            }
            Err(error) => trouble.wait(&error, tasks).await,
        }
    }
}

/// Not if it is only something in it that cannot be read.
fn is_away<T>(done: &Result<T, StoreError>) -> bool {
    matches!(done, Err(StoreError::Away(_)))
}

/// As [`claim`], of what a loop does in one namespace after another: true if one of them had something.
async fn first_of(
    rounds: &mut Rounds,
    ask: for<'a> fn(&'a Gateway) -> BoxFuture<'a, Result<bool, StoreError>>,
) -> Result<bool, StoreError> {
    let mut done = Ok(false);
    for (at, gateway) in rounds.order().await {
        let asked = ask(&gateway).await;
        rounds.answered(&gateway, !is_away(&asked));
        match asked {
            Ok(false) => {}
            Ok(true) => {
                rounds.had(at);
                return Ok(true);
            }
            Err(error) => done = Err(error),
        }
    }
    done
}

async fn sweep_loop(spaces: &Arc<Spaces>, tasks: &Tasks, beats: &Heartbeats) {
    let (mut trouble, mut rounds) = (Trouble::of("sweep"), Rounds::of(spaces));
    while !tasks.stopping() {
        beats.tick("sweep");
        match first_of(&mut rounds, |gateway| sweep(gateway).boxed()).await {
            Ok(found) => {
                trouble.over();
                if !found {
                    tasks.sleep(IDLE).await;
                }
            }
            Err(error) => trouble.wait(&error, tasks).await,
        }
    }
}

async fn seal_next(gateway: &Gateway) -> Result<bool, StoreError> {
    seal::seal_next(gateway, &fresh_token()).await
}

async fn sweep(gateway: &Gateway) -> Result<bool, StoreError> {
    let Some(chore) = gateway.store.take_chore(Duration::from_secs(60)).await? else { return Ok(false) };
    let done = gateway.store.do_chore(&chore, gateway.settings.lease * 2).await;
    if matches!(done, Err(StoreError::Corrupt { .. })) {
        gateway.store.put_off_chore(&chore, gateway.settings.lease).await?;
    }
    done.map(|()| true)
}

async fn janitor_loop(spaces: &Arc<Spaces>, tasks: &Tasks, beats: &Heartbeats) {
    let (every, mut trouble) = (spaces.common().settings.janitor, Trouble::of("janitor"));
    tasks.sleep((every / 20).min(FIRST_PASS)).await;
    while !tasks.stopping() {
        let mut done = Ok(());
        for gateway in spaces.all() {
            beats.tick("janitor");
            let passed = match gateway.store.turn("janitor", every).await {
                Ok(true) => pass(&gateway, tasks, beats).await,
                other => other.map(|_| ()),
            };
            done = passed.and(done);
        }
        match done {
            Ok(()) => {
                trouble.over();
                tasks.sleep(every.min(TURN)).await;
            }
            Err(error) => trouble.wait(&error, tasks).await,
        }
    }
}

/// One pass of the janitor, in a task of its own; it may break off anywhere. Each of its waits has a bound, so it ticks.
async fn pass(gateway: &Arc<Gateway>, tasks: &Tasks, beats: &Heartbeats) -> Result<(), StoreError> {
    let gateway = Arc::clone(gateway);
    let mut pass = tasks.spawn(async move { janitor::pass(&gateway).await });
    loop {
        tokio::select! {
            done = &mut pass => return done.unwrap_or_else(|panic| {
                tracing::error!(%panic, "the janitor's pass broke off; again at its next turn");
                Ok(())
            }),
            () = tasks.stopped() => {
                pass.abort();
                return Ok(());
            }
            () = tasks.sleep(TURN) => beats.tick("janitor"),
        }
    }
}

/// Sleeps until woken, or for `idle`; gives the next idle time: 20 ms, 40 ms, ... then every half second.
async fn rest(tasks: &Tasks, wake: &Notify, idle: Duration) -> Duration {
    tokio::select! {
        () = wake.notified() => BUSY,
        () = tasks.sleep(idle) => (idle * 2).min(IDLE),
    }
}

/// An owner is nobody's name: a token is drawn for each dispatch.
fn fresh_token() -> Token {
    Token::new(&rand::random())
}
