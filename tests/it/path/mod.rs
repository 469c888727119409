//! What must come out when all goes well: the promises of the native API, each told as a story.

mod origin;
