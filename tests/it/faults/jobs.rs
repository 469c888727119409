//! Seams that no batch comes by: the janitor's, the reconciler's, those of an adoption and of a configuration that is read
//! again. At each of them the process dies, stands still for longer than its lease, or sees its call break off; what is in
//! hand beside it ends with the right answers, and nothing is paid twice.

use super::{copies, janitor, reconcile};
use crate::support::{
    Batch, Kind, World, check, claude,
    client::{count, id},
    dir::Dir,
    gateway::Gateway,
    gpt, nothing_is_left_behind, settles, until,
    wait::within,
};
use batchgate::failpoint;
use std::time::Duration;

/// What must happen for the seam to be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Janitor,
    Reconciler,
    Adoption,
    Reload,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Exit,
    Stall,
    Error,
}

impl Mode {
    fn armed(self, point: &str) -> String {
        let word = match self {
            Mode::Exit => "exit",
            Mode::Stall => "stall:4s",
            Mode::Error => "error",
        };
        format!("{point}={word}")
    }
}

macro_rules! seams {
    ($($point:ident, $job:ident, $fate:literal;)+) => {
        /// Each point, and what becomes of the job if the process dies there.
        pub(super) const SEAMS: &[(&str, &str)] = &[$((stringify!($point), $fate)),+];
        $(mod $point {
            use super::{Job, Kind, Mode, run};

            #[tokio::test]
            async fn exit() {
                run(stringify!($point), Job::$job, Mode::Exit, Kind::Ours).await;
            }

            #[tokio::test]
            async fn stall() {
                run(stringify!($point), Job::$job, Mode::Stall, Kind::Referee).await;
            }

            #[tokio::test]
            async fn error() {
                run(stringify!($point), Job::$job, Mode::Error, Kind::Ours).await;
            }
        })+
    };
}

seams! {
    janitor_found, Janitor, "Nothing is noted: the next pass finds the batch again.";
    janitor_kept, Janitor, "Its answers are in the cache, and nobody knows it: the next pass reads them once more and changes nothing.";
    janitor_noted, Janitor, "It is done with; the rest is the next pass's.";
    reconcile_looked, Reconciler, "Nothing was touched: the next pass looks twice again.";
    reconcile_repaired, Reconciler, "What is put right stays so; the next pass begins where this one did.";
    adopt_dropping, Adoption, "A batch is cancelled whose chunks are not dropped yet, and it is a copy still: adopted again, it is dropped as a whole.";
    adopting, Adoption, "It is a copy still; an adoption may be repeated.";
    reloading, Reload, "The old teams hold until it is read again; a process that starts reads the new ones.";
}

async fn run(point: &str, job: Job, mode: Mode, sim: Kind) {
    assert!(SEAMS.iter().any(|seam| seam.0 == point));
    match job {
        Job::Janitor => the_janitor(&mode.armed(point), mode, sim).await,
        Job::Reconciler => the_reconciler(&mode.armed(point), mode, sim).await,
        Job::Adoption => an_adoption(&mode.armed(point), mode, sim).await,
        Job::Reload => a_reload(&mode.armed(point), mode, sim).await,
    }
}

/// Starts a gateway that is armed, waits until it has tripped, and puts another beside it, or in its place.
async fn tripped(world: &mut World, armed: &str, mode: Mode) {
    world.start_gateway_with(&[(failpoint::VARIABLE, armed)]).await;
    let at = world.gateways.len() - 1;
    until("the point to be met", async || {
        let said = world.gateways[at].process.said();
        if said.contains("fail point tripped") { Ok(()) } else { Err(said) }
    })
    .await;
    world.start_gateway().await;
    if mode == Mode::Exit {
        let process = &mut world.gateways[at].process;
        within(Duration::from_secs(40), "the gateway to end", async || process.ended().ok_or("it runs")).await;
        world.gateways.remove(at);
    } else {
        world.gateways.swap(at, at + 1); // the one that surely answers is asked
        awake(&world.gateways[at + 1], mode).await;
    }
}

async fn awake(gateway: &Gateway, mode: Mode) {
    if mode == Mode::Stall {
        within(Duration::from_secs(20), "the sleeper to wake", async || {
            let said = gateway.process.said();
            if said.contains("awake again") { Ok(()) } else { Err(said) }
        })
        .await;
    }
}

/// Redis has lost everything, and the providers have what was paid for.
async fn the_janitor(armed: &str, mode: Mode, sim: Kind) {
    let env = [copies::SHORT.as_slice(), &[("BATCHGATE_JANITOR", "300ms")]].concat();
    let mut world = World::with(sim, &env).await;
    let batch = janitor::batch("found by the janitor");
    janitor::running(&world, &batch).await;
    reconcile::killed(&mut world).await;
    world.redis.command::<()>(&["FLUSHALL"]).await;
    world.sim.advance(1_100.0).await;
    tripped(&mut world, armed, mode).await;
    janitor::all_is_kept(&world, &batch).await;
}

/// A chunk in no queue and a wrong counter, while the batch is at its providers.
async fn the_reconciler(armed: &str, mode: Mode, sim: Kind) {
    let batch = reconcile::batch("damaged");
    let (mut world, id) = reconcile::down(sim, &batch).await;
    let hex = id.trim_start_matches("batch_");
    let lost = format!("{hex}.0");
    reconcile::take_out(&world, &lost).await;
    world.redis.command::<u64>(&["HSET", &format!("{{default}}:b:{hex}"), "c_running", "9"]).await;
    tripped(&mut world, armed, mode).await;
    until("both to be put right", async || {
        let object = world.client().batch(&id).await;
        let mut places = Vec::new();
        for queue in ["delayed", "claimed"] {
            places
                .push(world.redis.command::<Option<String>>(&["ZSCORE", &format!("{{default}}:{queue}"), &lost]).await);
        }
        let queued = places.iter().any(Option::is_some);
        if object["chunks"]["running"] == 6 && queued { Ok(()) } else { Err((object, places)) }
    })
    .await;
    world.sim.clear_faults().await;
    world.sim.advance(2_000.0).await;
    settles(&world, &batch, &id).await;
    nothing_is_left_behind(&world).await;
}

/// A copy becomes staging's, which drops what production has under way.
async fn an_adoption(armed: &str, mode: Mode, sim: Kind) {
    let mut world = World::with(sim, &copies::SHORT).await;
    let (batch, object) = copies::under_way(&world, "production's").await;
    let dir = Dir::new();
    let redis = copies::copy(&world, dir.path()).await;
    let staging = copies::env(&[("BATCHGATE_DEPLOYMENT", "staging")]);
    let armed = copies::env(&[("BATCHGATE_DEPLOYMENT", "staging"), (failpoint::VARIABLE, armed)]);
    let words = ["--yes", "--drop-running"];
    let (code, said) = copies::adopt(&redis, &world, &armed, &words);
    assert_eq!(code == Some(0), mode == Mode::Stall, "{mode:?}: {said}");
    if mode != Mode::Stall {
        let reader = Gateway::start("reader", &redis, &world.sim, &staging, dir.path()).await;
        assert_eq!(reader.client.get("/readyz").await.ok()["status"], "copy", "half an adoption is none");
    }
    let (code, said) = copies::adopt(&redis, &world, &staging, &words);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.contains("nothing to adopt"), mode == Mode::Stall, "{said}");

    let gateway = Gateway::start("staging", &redis, &world.sim, &staging, dir.path()).await;
    let dropped = gateway.client.ended(id(&object)).await;
    assert_eq!((count(&dropped, "canceled"), count(&dropped, "total")), (8, 8), "{dropped}");
    for route in ["batches.cancel", "files.delete"] {
        assert_eq!(world.sim.calls(route).await.len(), 0, "production's are left alone: {route}");
    }
    world.sim.advance(1_100.0).await;
    settles(&world, &batch, id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 4);
    world.kill_gateway();
    world.gateways.push(gateway);
    world.redis = redis;
    world.sim.take(0.0).await;
    check(&world, &Batch::of([claude("staging's own"), gpt("staging's own")])).await;
    nothing_is_left_behind(&world).await;
}

/// The same two providers under another account of models: what a reload may not take up, and the teams that it does.
async fn a_reload(armed: &str, mode: Mode, sim: Kind) {
    let mut world = World::empty(sim, &copies::SHORT).await;
    let team = |name: &str, key: &str| {
        use sha2::Digest;
        let digest: String = sha2::Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("[teams.{name}]\nkeys = [{{name = \"first\", hash = \"sha256:{digest}\"}}]\nrole = \"admin\"\n")
    };
    world.configure(&team("old", "bg_old_key"));
    world.start_gateway_with(&[(failpoint::VARIABLE, armed)]).await;
    let as_old = world.client().with_key("bg_old_key");
    world.sim.take(1_000.0).await;
    let batch = Batch::of((0..4).flat_map(|n| [claude(&format!("reload {n}")), gpt(&format!("reload {n}"))]));
    let object = batch.post(&as_old).await.accepted();
    until("the chunks to run", async || {
        let object = as_old.batch(id(&object)).await;
        if object["chunks"]["running"] == 2 { Ok(()) } else { Err(object) }
    })
    .await;
    world.configure(&(team("old", "bg_old_key") + &team("new", "bg_new_key")));
    world.gateways[0].process.signal("HUP");
    until("the point to be met", async || {
        let said = world.gateways[0].process.said();
        if said.contains("fail point tripped") { Ok(()) } else { Err(said) }
    })
    .await;
    match mode {
        Mode::Exit => {
            let process = &mut world.gateways[0].process;
            within(Duration::from_secs(40), "the gateway to end", async || process.ended().ok_or("it runs")).await;
            world.kill_gateway();
            world.start_gateway().await;
        }
        Mode::Stall => awake(&world.gateways[0], mode).await,
        Mode::Error => {
            until("the configuration to be refused", async || {
                let page = as_old.get("/metrics").await.text;
                if page.contains("\nbatchgate_config_refused 1\n") { Ok(()) } else { Err(page) }
            })
            .await;
            world.client().with_key("bg_new_key").get("/batches").await.refused(401, "unauthorized");
            world.gateways[0].process.signal("HUP");
        }
    }
    let (as_old, as_new) = (world.client().with_key("bg_old_key"), world.client().with_key("bg_new_key"));
    until("the new team to be let in", async || {
        let reply = as_new.get("/batches").await;
        if reply.status == 200 { Ok(()) } else { Err(reply) }
    })
    .await;
    world.sim.advance(1_100.0).await;
    world.gateways[0].client = as_old;
    settles(&world, &batch, id(&object)).await;
    nothing_is_left_behind(&world).await;
}
