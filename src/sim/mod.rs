//! A stand-in world: Anthropic and OpenAI batch servers. Imports nothing of ours.
