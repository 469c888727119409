//! A server without a batch API: the simulators' online endpoints under an account of their own, and prompts for it.

use super::{
    door::Door,
    prompt::{MAX_TOKENS, Prompt},
    sim::Kind,
    world::World,
};
use serde_json::json;

pub(crate) const LOCAL: &str = "local-llama";

/// A question for the local server.
pub(crate) fn local(text: &str) -> Prompt {
    let messages = json!([{"role": "user", "content": text}]);
    let body = json!({"model": LOCAL, "max_tokens": MAX_TOKENS, "messages": messages});
    Prompt::new(json!({"model": LOCAL, "messages": messages}), body)
}

/// So many different ones.
pub(crate) fn locals(name: &str, count: usize) -> Vec<Prompt> {
    (0..count).map(|n| local(&format!("{name} {n}"))).collect()
}

/// A gateway with three accounts; `extra`: further lines of the local one's table.
pub(crate) async fn world(kind: Kind, extra: &str, env: &[(&str, &str)]) -> World {
    let mut world = World::empty(kind, env).await;
    let url = world.sim.openai();
    configure(&mut world, &url, extra);
    world.start_gateway().await;
    world
}

/// As [`world`], with a door before the local server, still closed.
pub(crate) async fn behind_a_door(kind: Kind, extra: &str) -> (World, Door) {
    let mut world = World::empty(kind, &[]).await;
    let door = Door::new(world.sim.address()).await;
    let url = format!("http://{}/openai/v1", door.address);
    configure(&mut world, &url, extra);
    world.start_gateway().await;
    (world, door)
}

fn configure(world: &mut World, local: &str, extra: &str) {
    let file = file(world, local, r#""local-*", "*-embed""#, extra);
    world.configure(&file);
}

/// A gateway's file with two accounts; `models`: those of the local one.
pub(crate) fn file(world: &World, local: &str, models: &str, extra: &str) -> String {
    let anthropic = world.sim.anthropic();
    format!(
        "[[providers]]\nname = \"anthropic\"\nkind = \"anthropic-batch\"\nbase_url = \"{anthropic}\"\n\
         api_key_env = [\"ANTHROPIC_API_KEY\"]\n\n\
         [[providers]]\nname = \"local\"\nkind = \"openai-online\"\nbase_url = \"{local}\"\n\
         api_key_env = [\"OPENAI_API_KEY\"]\nmodels = [{models}]\n{extra}\n"
    )
}
