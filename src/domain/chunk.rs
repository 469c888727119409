//! The lives of a chunk, its wire tag, and the ledger its results are entered in.
