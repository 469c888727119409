//! What may be left in Redis once every batch has ended and the sweeper had its time: the table of `src/store/keys.rs`,
//! told once more from the outside. Whatever else is there was forgotten by somebody.

use super::{wait, world::World};
use std::time::Duration;

/// The sweeper's delays are a few leases, and the suite's lease is short; but a chore that failed (Redis was away) comes
/// back after a minute.
const SWEPT: Duration = Duration::from_secs(80);

/// Waits until nothing is left that should be gone, and checks what is left for its time to live.
pub(crate) async fn nothing_is_left_behind(world: &World) {
    wait::within(SWEPT, "the sweeper to remove what is done with", async || {
        let keys = world.redis.keys().await;
        let chores: Vec<String> = world.redis.command(&["ZRANGE", "{default}:chores", "0", "-1"]).await;
        let mut left: Vec<String> = keys.keys().filter(|key| lifetime(key).is_none()).cloned().collect();
        // An upload is looked at once more after ten minutes, a batch at the end of its retention.
        let known = |chore: &String| chore.starts_with("batch:") || chore.starts_with("upload:");
        left.extend(chores.into_iter().filter(|chore| !known(chore)).map(|chore| format!("chore {chore}")));
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    for (key, ttl) in world.redis.keys().await {
        let mortal = lifetime(&key) == Some(Life::Mortal) || is_a_losers(world, &key).await;
        assert_eq!(ttl >= 0, mortal, "{key} lives for {ttl} ms");
    }
}

/// Two sealers may write one page; what the slower one wrote bears another name than the page's directory says, and dies
/// by itself. `{default}:b:<batch>:p:<page>:<name>:<frame>`, and with `r` for what the page left unanswered.
async fn is_a_losers(world: &World, key: &str) -> bool {
    let parts: Vec<&str> = key.split(':').collect();
    let ["{default}", "b", batch, "p" | "r", page, name, _] = parts[..] else { return false };
    let live: Option<String> = world.redis.command(&["HGET", &format!("{{default}}:b:{batch}:pages"), page]).await;
    !live.is_some_and(|live| live.contains(name))
}

#[derive(Debug, PartialEq, Eq)]
enum Life {
    /// Has a time to live.
    Mortal,
    /// Removed by the sweeper at the end of retention.
    Kept,
}

/// None: no such key may be left.
fn lifetime(key: &str) -> Option<Life> {
    if key.starts_with("{sys}:batch:") || key == "{sys}:keys" {
        return Some(Life::Kept);
    }
    if key.starts_with("{acct:") {
        return Some(Life::Mortal);
    }
    let parts: Vec<&str> = key.strip_prefix("{default}:")?.split(':').collect();
    match parts[..] {
        ["c" | "turn" | "walk", _] | ["sizes"] | ["reconciler"] | ["shares"] | ["unreadable", ..] => Some(Life::Mortal),
        ["i", _, _] | ["r" | "j", _] | ["n", _, _] | ["n", _, _, "free"] => Some(Life::Mortal),
        ["b", _] | ["b", _, "pages" | "starts" | "unanswered"] | ["b", _, "p" | "r", ..] | ["t", _] | ["chores"] => {
            Some(Life::Kept)
        }
        ["k", _] => Some(Life::Kept),
        _ => None,
    }
}

/// Lets so much time pass for chores and uploads, and nothing else: all of them in their order.
pub(crate) async fn time_passes(world: &World, time: Duration) {
    let back = format!("-{}", time.as_millis());
    for queue in ["{default}:chores", "{default}:uploads"] {
        let waiting = world.redis.command::<Vec<String>>(&["ZRANGE", queue, "0", "-1"]).await;
        for member in waiting {
            let kept =
                member.starts_with("batch:") || (member.starts_with("upload:") && time < Duration::from_secs(600));
            if !kept {
                world.redis.command::<f64>(&["ZINCRBY", queue, &back, &member]).await;
            }
        }
    }
}
