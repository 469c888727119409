//! A secret that cannot be printed by accident. Knows nothing of where it came from.

use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fmt;

/// An API key. `Debug` and `Display` print `***`; [`Secret::reveal`] is the one way to the text.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for the one header that carries it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Eight hex digits that tell this secret from others and say nothing of it.
    pub fn name(&self) -> String {
        let digest = Sha256::new().chain_update("batchgate key\0").chain_update(&self.0).finalize();
        digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_prints_itself() {
        let secret = Secret::new("sk-live");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "*** *** Some(***)");
        assert_eq!(secret.reveal(), "sk-live");
        assert_eq!(secret.name().len(), 8);
        assert_ne!(secret.name(), Secret::new("sk-live2").name());
    }
}
