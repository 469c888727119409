//! DOOR: time. Claims what is due and steps it: claim -> step -> release. Decides nothing about batches.
//!
//! Take a permit before claiming, never hold more than can start now: first the narrow ones, a seat at each server that
//! is asked one by one, then the wide one, a slot of the worker. A chunk that has a seat gives the slot back: what a slow
//! server holds up is its own chunks alone. Every step runs in a task of its own, so that a
//! panic in one is an outcome and not the end of the loop; the claim's guard owns the renewal.

mod guard;
mod step;

use crate::{
    domain::id::Token,
    lifecycle::{Heartbeats, Tasks},
    pipeline::{Gateway, online::desk::Seat, poison, reconcile, seal},
    store::{StoreError, queue::Claim},
};
use guard::Guard;
use std::{sync::Arc, time::Duration};
use tokio::sync::{Notify, Semaphore};

/// Longest sleep of a loop that found nothing to do.
const IDLE: Duration = Duration::from_millis(500);
/// Shortest: right after there was something.
const BUSY: Duration = Duration::from_millis(20);
/// Longest between two looks at whose turn it is.
const TURN: Duration = Duration::from_secs(5);
/// Wait after Redis failed.
const AWAY: Duration = Duration::from_secs(1);

/// Starts the worker's loops; they end when the tasks are told to stop.
pub fn start(gateway: &Arc<Gateway>, tasks: &Tasks, beats: &Heartbeats, workers: usize) {
    let (slots, main) = (Arc::new(Semaphore::new(workers)), Arc::clone(gateway));
    let (claim_tasks, claim_beats) = (tasks.clone(), beats.clone());
    tasks.spawn_loop("claim", async move { claim_loop(main, slots, claim_tasks, claim_beats).await });
    let (main, seal_tasks, seal_beats) = (Arc::clone(gateway), tasks.clone(), beats.clone());
    tasks.spawn_loop("seal", async move { seal_loop(&main, &seal_tasks, &seal_beats).await });
    let (main, sweep_tasks, sweep_beats) = (Arc::clone(gateway), tasks.clone(), beats.clone());
    tasks.spawn_loop("sweep", async move { sweep_loop(&main, &sweep_tasks, &sweep_beats).await });
    if gateway.settings.reconcile != reconcile::Mode::Off {
        let (main, own_tasks, own_beats) = (Arc::clone(gateway), tasks.clone(), beats.clone());
        tasks.spawn_loop("reconcile", async move { reconcile_loop(&main, &own_tasks, &own_beats).await });
    }
}

/// One process of all looks, each time.
async fn reconcile_loop(gateway: &Arc<Gateway>, tasks: &Tasks, beats: &Heartbeats) {
    let every = gateway.settings.reconcile_every;
    while !tasks.stopping() {
        beats.tick("reconcile");
        match reconcile_in_turn(gateway, every).await {
            Ok(()) => tasks.sleep((every / 2).min(TURN)).await,
            Err(error) => trouble("reconcile", &error, tasks).await,
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

async fn claim_loop(gateway: Arc<Gateway>, slots: Arc<Semaphore>, tasks: Tasks, beats: Heartbeats) {
    let mut idle = BUSY;
    while !tasks.stopping() {
        beats.tick("claim");
        let Ok(permit) = Arc::clone(&slots).try_acquire_owned() else {
            tasks.sleep(BUSY).await;
            continue;
        };
        let seats = gateway.seats();
        match gateway.store.claim(fresh_token(), gateway.settings.lease, &seats.full).await {
            Ok(Some(claim)) => {
                idle = BUSY;
                metrics::counter!("batchgate_claims_total").increment(1);
                metrics::counter!("batchgate_reclaims_total").increment(u64::from(claim.reclaims > 0));
                metrics::gauge!("batchgate_workers_busy").increment(1);
                let seat = seats.keep(&claim.account);
                let permit = Some(permit).filter(|_| seat.is_none());
                let gateway = Arc::clone(&gateway);
                let step_tasks = tasks.clone();
                tasks.spawn(async move {
                    work(&gateway, &step_tasks, claim, seat).await;
                    metrics::gauge!("batchgate_workers_busy").decrement(1);
                    drop(permit);
                });
            }
            Ok(None) => {
                drop((seats, permit));
                idle = rest(&tasks, &gateway.wake.chunks, idle).await;
            }
            Err(error) => {
                drop(seats);
                trouble("claim", &error, &tasks).await;
            }
        }
    }
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

async fn seal_loop(gateway: &Arc<Gateway>, tasks: &Tasks, beats: &Heartbeats) {
    let mut idle = BUSY;
    while !tasks.stopping() {
        beats.tick("seal");
        match seal::seal_next(gateway, &fresh_token()).await {
            Ok(true) => idle = BUSY,
            Ok(false) => idle = rest(tasks, &gateway.wake.pages, idle).await,
            Err(error) => trouble("seal", &error, tasks).await,
        }
    }
}

async fn sweep_loop(gateway: &Arc<Gateway>, tasks: &Tasks, beats: &Heartbeats) {
    while !tasks.stopping() {
        beats.tick("sweep");
        match gateway.store.take_chore(Duration::from_secs(60)).await {
            Ok(Some(chore)) => {
                if let Err(error) = gateway.store.do_chore(&chore, gateway.settings.lease * 2).await {
                    if matches!(error, StoreError::Corrupt { .. })
                        && let Err(error) = gateway.store.put_off_chore(&chore, gateway.settings.lease).await
                    {
                        tracing::warn!(%error, "put off a chore that cannot be done");
                    }
                    trouble("sweep", &error, tasks).await;
                }
            }
            Ok(None) => tasks.sleep(IDLE).await,
            Err(error) => trouble("sweep", &error, tasks).await,
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

async fn trouble(what: &str, error: &StoreError, tasks: &Tasks) {
    tracing::error!(what, %error, "loop failed; again shortly");
    metrics::counter!("batchgate_loop_errors_total", "loop" => what.to_owned()).increment(1);
    tasks.sleep(AWAY).await;
}
