//! `batchgate key new`: makes a key. The gateway stores only its hash, so the secret is shown once, here.

use super::{
    failure::{Ending, Failure},
    out,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;
use sha2::{Digest, Sha256};

/// The one team there is until teams are configured.
const DEFAULT_TEAM: &str = "default";

#[derive(clap::Subcommand, Debug)]
pub(crate) enum KeyCommand {
    /// Make a key: prints the setting for the gateway and, once, the secret for its user
    New {
        /// Whose key it is; `default` is the one team of this version
        team: String,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(command: &KeyCommand) -> Result<Ending, Failure> {
    let KeyCommand::New { team, json } = command;
    if team != DEFAULT_TEAM {
        return Err(Failure::Usage(format!(
            "this version knows one team, `{DEFAULT_TEAM}`: run batchgate key new {DEFAULT_TEAM} (any number of keys may be its)"
        )));
    }
    let secret = secret(team, &rand::random());
    let hash = hash(&secret);
    if *json {
        out::json(&json!({"team": team, "secret": secret, "hash": hash}))?;
    } else {
        out::say(&format!(
            "# for the gateway (several hashes are separated by commas)\nBATCHGATE_KEY_HASHES={hash}\n\n\
             # for whoever calls it; shown this once\nBATCHGATE_KEY={secret}"
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
        assert!(matches!(run(&KeyCommand::New { team: "evals".to_owned(), json: false }), Err(Failure::Usage(_))));
    }
}
