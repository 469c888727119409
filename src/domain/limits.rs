//! What one provider batch may hold, in counts and exact wire bytes. Pure figures; who needs them asks the provider.

/// Bounds of one provider batch and what a prompt weighs in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Most prompts in one batch.
    pub max_prompts: usize,
    /// Most inputs in all its prompts together; none where inputs are not counted.
    pub max_inputs: Option<u64>,
    /// Most bytes of the file or body that carries them.
    pub max_bytes: u64,
    /// Bytes the file or body costs before the first prompt.
    pub fixed_bytes: u64,
    /// Bytes a prompt's line costs beyond its body: custom_id, member names, separators, line end.
    pub line_bytes: u64,
    /// May prompts of different models share a batch?
    pub mixes_models: bool,
}

impl BatchLimits {
    /// Do so many inputs fit in one batch?
    pub fn take_inputs(&self, inputs: u64) -> bool {
        self.max_inputs.is_none_or(|most| inputs <= most)
    }

    /// Wire bytes of a prompt whose compact JSON body has `body` bytes.
    pub fn weight(&self, body: usize) -> u64 {
        self.line_bytes + body as u64
    }
}
