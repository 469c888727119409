//! What every story needs: a world of its own (Redis, a simulator, gateways), prompts that know their answer, and the
//! check that ends a story. Knows the public API and the simulators' control surface; nothing of the crate's insides.

pub(crate) mod batch;
pub(crate) mod check;
pub(crate) mod client;
pub(crate) mod contract;
pub(crate) mod dir;
pub(crate) mod door;
pub(crate) mod gateway;
pub(crate) mod leftovers;
pub(crate) mod local;
pub(crate) mod process;
pub(crate) mod prompt;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod sim;
pub(crate) mod source;
pub(crate) mod stubborn;
pub(crate) mod teams;
pub(crate) mod wait;
pub(crate) mod world;

pub(crate) use batch::Batch;
pub(crate) use check::{again, check, settles};
pub(crate) use leftovers::nothing_is_left_behind;
pub(crate) use prompt::{Prompt, claude, gpt, mixed};
pub(crate) use sim::Kind;
pub(crate) use wait::until;
pub(crate) use world::World;

/// Runs a story against both simulators: `story` becomes the tests `story::ours` and `story::referee`.
macro_rules! for_both {
    ($($story:ident),+ $(,)?) => {$(
        mod $story {
            use crate::support::Kind;

            #[tokio::test]
            async fn ours() {
                super::$story(Kind::Ours).await;
            }

            #[tokio::test]
            async fn referee() {
                super::$story(Kind::Referee).await;
            }
        }
    )+};
}
pub(crate) use for_both;
