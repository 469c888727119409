//! A batch: what its client asked for as a whole, and how far it is.
