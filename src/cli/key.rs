//! `batchgate key new`: makes a key. The gateway stores only its hash, so the secret is shown once, here.
//! `batchgate key list`: which keys open a gateway, and when each was last used.

use super::{
    Door,
    client::Client,
    failure::{Ending, Failure},
    out,
};
use crate::domain::team::Team;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;
use sha2::{Digest, Sha256};

#[derive(clap::Subcommand, Debug)]
pub(crate) enum KeyCommand {
    /// Make a key: prints what the gateway's configuration needs and, once, the secret for its user
    New {
        /// Whose key it is: a name of a-z, 0-9 and -
        team: String,
        /// What the configuration calls it
        #[arg(long, default_value = "first")]
        name: String,
        /// The day on which it ends, at its beginning in UTC: 2027-06-01
        #[arg(long, value_name = "DAY")]
        expires: Option<String>,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// The keys of a running gateway and when each was last used; needs an admin's key
    List {
        #[command(flatten)]
        door: Door,
    },
}

pub(crate) async fn run(command: KeyCommand) -> Result<Ending, Failure> {
    match command {
        KeyCommand::New { team, name, expires, json } => new(&team, &name, expires.as_deref(), json),
        KeyCommand::List { door } => list(&door.client()?, door.json).await,
    }
}

fn new(team: &str, name: &str, expires: Option<&str>, json: bool) -> Result<Ending, Failure> {
    if !Team::is_name(team) {
        return Err(Failure::Usage(format!("{team:?} is no name of a team: 1 to 40 of a-z, 0-9 and -")));
    }
    let secret = secret(team, &rand::random());
    let hash = hash(&secret);
    if json {
        out::json(&json!({"team": team, "name": name, "expires": expires, "secret": secret, "hash": hash}))?;
    } else {
        out::say(&stanza(team, name, expires, &hash))?;
        out::say(&format!("\n# for whoever calls it; shown this once\nBATCHGATE_KEY={secret}"))?;
    }
    Ok(Ending::Fine)
}

/// What to put into the configuration: the file's table, or for the team that needs no file its variable.
fn stanza(team: &str, name: &str, expires: Option<&str>, hash: &str) -> String {
    let quoted = |text: &str| toml::Value::String(text.to_owned());
    let end = expires.map(|day| format!(", expires = {}", quoted(day))).unwrap_or_default();
    let table = format!("[teams.{team}]\nkeys = [{{name = {}, hash = \"{hash}\"{end}}}]", quoted(name));
    if team == Team::DEFAULT && expires.is_none() {
        return format!(
            "# for the gateway: in its environment (several hashes are separated by commas)\nBATCHGATE_KEY_HASHES={hash}\n\
             # or in its file, batchgate.toml\n{table}"
        );
    }
    format!("# for the gateway's file, batchgate.toml; `kill -HUP` makes it read its teams again\n{table}")
}

async fn list(client: &Client, json: bool) -> Result<Ending, Failure> {
    let page = client.keys().await?;
    if json {
        out::json(&page)?;
        return Ok(Ending::Fine);
    }
    for key in page["data"].as_array().into_iter().flatten() {
        let text = |member: &str, none: &str| out::clip(key[member].as_str().unwrap_or(none), 60);
        out::say(&format!(
            "{}  {}  {}  expires {}  last used {}",
            text("team", "?"),
            text("name", "?"),
            text("role", "?"),
            text("expires_at", "never"),
            text("last_used_at", "never")
        ))?;
    }
    Ok(Ending::Fine)
}

/// `bg_<team>_<256 random bits>`: no guessing it, so a plain hash keeps it safe.
fn secret(team: &str, random: &[u8; 32]) -> String {
    format!("bg_{team}_{}", URL_SAFE_NO_PAD.encode(random))
}

/// `sha256:<hex>` of the secret as it is sent.
fn hash(secret: &str) -> String {
    let hex: String = Sha256::digest(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_its_hash_have_the_agreed_form() {
        let secret = secret("default", &[0; 32]);
        assert_eq!(secret, format!("bg_default_{}", "A".repeat(43)));
        assert_eq!(hash("abc"), "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(matches!(new("Evals", "ci", None, true), Err(Failure::Usage(_))));
    }

    #[test]
    fn what_is_printed_can_be_pasted() {
        let hash = hash("abc");
        for (team, name, expires) in [("evals", "ci \"x\"", Some("2027-06-01")), ("evals", "first", None)] {
            let table: toml::Table = stanza(team, name, expires, &hash).parse().expect("TOML");
            let key = &table["teams"][team]["keys"][0];
            assert_eq!((key["name"].as_str(), key["hash"].as_str()), (Some(name), Some(hash.as_str())));
            assert_eq!(key.get("expires").and_then(toml::Value::as_str), expires);
        }
    }
}
