//! Teams in a gateway's file, and the keys they ask with.

use super::{client::Client, world::World};

/// The hash of a key, as the file has it.
pub(crate) fn hash(key: &str) -> String {
    use sha2::Digest;
    format!("sha256:{}", sha2::Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// A team's table with one key and these further lines.
pub(crate) fn team(name: &str, key: &str, rest: &str) -> String {
    format!("[teams.{name}]\nkeys = [{{name = \"first\", hash = \"{}\"}}]\n{rest}\n", hash(key))
}

/// A team whose key is made of its name.
pub(crate) fn named(name: &str, rest: &str) -> String {
    team(name, &format!("bg_{name}_key"), rest)
}

/// The first gateway, asked by a team of [`named`].
pub(crate) fn client(world: &World, name: &str) -> Client {
    world.client().with_key(&format!("bg_{name}_key"))
}
