//! batchgate: a shared per-prompt cache in front of the batch APIs of LLM providers.
//!
//! # The map
//!
//! Nouns at the bottom, devices above them, verbs above those, doors on top; imports only point down.
//!
//! ```text
//!                  main -> cli                                    composition root; only it sees config and lifecycle
//!           +--------+--------+------------+
//!         http     worker    sim (island)                         doors never import each other
//!           +--------+
//!                pipeline                                         verbs
//!           +--------+--------+
//!         store            provider                               devices never import each other
//!           +--------+--------+
//!                 domain                                          nouns
//! ```
//!
//! Follow a batch: `http::batches::submit` reads a body, [`pipeline::submit`] makes a batch of it, [`worker`] claims its
//! chunks, [`pipeline::dispatch`] sends them if [`pipeline::account`] and [`pipeline::budget`] let it, and one by one where
//! nothing on a batch says whose it is ([`pipeline::creates`]); [`pipeline::doubt`] finds what a lost answer may have left,
//! [`pipeline::collect`] watches and reads, [`pipeline::commit`] settles a chunk in one transaction ([`store::commit`]),
//! [`pipeline::poison`] sets apart what fails again and again, [`pipeline::seal`] puts the results in order,
//! [`pipeline::read`] reads. What ended without an answer is kept by the sealer, and [`pipeline::retry`] makes a new batch
//! of it. [`pipeline::reconcile`] holds open batches against their chunks and pages, and puts right what damage left.
//!
//! What no chunk will read any more, [`pipeline::janitor`] finds at the providers, by its tag, and brings into the cache. A
//! commit that a harvest led to notes so ([`store::janitor`]): what is not noted, and no chunk has in hand, is its business.
//!
//! A batch is promised room for its answers when it is accepted ([`pipeline::room`]), and no upload may fill what others were
//! promised: the promise shrinks in the commits that use it. Where Redis refuses or does not answer, what is paid for is held on to ([`pipeline::patience`]).
//!
//! What another batch asks already is marked ([`store::marks`]) and joined: [`pipeline::join`] waits for that batch's chunk,
//! whose commit serves all who wait ([`store::joins`]), or takes over what it leaves unanswered.
//!
//! Which chunk is sent next the claim decides ([`store::queue`]): the team with the least under way, then the most urgent. A lane
//! is a team's at an account, not (as in `design.md`) a model's: a claim looks at all of them, and a team could invent models. What
//! an admin has paused waits before everything that would be paid for ([`pipeline::pause`]); and how much a team may have in
//! work at once ([`domain::quota`]) the accept script counts.
//!
//! Where a server has no batches, [`pipeline::online`] asks a chunk's prompts one by one in their place, and notes what is
//! said as it comes ([`store::said`]).
//!
//! # What is not here
//!
//! * No function takes a list of prompts and a list of results. Results are entered into a [`domain::chunk::Ledger`]
//!   under a wire id made of the question's key; order lives in a batch's manifest pages alone; only a closed ledger
//!   can be settled.
//! * No batch reads the cache after it was accepted, but for prompts that were about to join a call which ended before they
//!   were registered with it. What it was given then, and what its own chunks or those it joined brought, is kept under its
//!   own name: nothing that happens to the cache can change or lose a result.
//! * No state of a chunk is written without the token of the dispatch that holds it.
//!
//! # Namespaces
//!
//! A [`pipeline::Gateway`] is one namespace, and the verbs know no other: [`pipeline::spaces`] holds one for each, over the same
//! connections, accounts and seats. The doors choose: a request works where its team writes, the worker's loops go round all
//! of them, each round behind the one that had something last. Only the look into the cache at accept goes further.
//!
//! Each namespace has one hash tag, so one slot and one node of a cluster. [`store`]'s links are ways to a tag, not to a server:
//! what is asked in one go bears one tag, and the few things that belong to an account or to the gateway take the way of theirs.
//! `design.md` wants an index from batch to namespace; there is none. Namespaces are few, the one that is asked for nearly always is the
//! one the team writes, and an index would be one more thing to write before, sweep after, and look at in a time that tells.
//!
//! # The original and its copies
//!
//! A Redis remembers where it is at home ([`domain::home`]). [`worker::home`] looks each second what it is: only on the
//! original are there loops; on a copy the doors answer reads alone, until [`pipeline::home`] adopts it.
//!
//! # What one at the doors may take
//!
//! Not all of anything. Connections are at most half of the descriptors ([`http::listen`]); a team gets all seats for creating
//! a batch but one ([`http::Seats`]), and its bodies have to come at a least rate; one prompt is bounded, as it stands in
//! memory whole ([`pipeline::frames`]). Whose a batch is is asked before anything else is read of it, so that another
//! team's is as unknown as none.
//!
//! # How results reach a batch
//!
//! `design.md` packs a chunk's answers in *parts* that all waiting batches share. Here a commit writes *fragments*
//! instead: for each open result page of each waiting batch, the outcomes that page wants, keyed. A page's readers and
//! its sealer look into that page's fragments alone, so nobody searches a whole chunk for one page, and a fragment dies
//! with its page, so there are no shared readers to count. Sealing bounds what is kept twice to the pages still open.
//!
//! # How a batch joins
//!
//! In `design.md` joins are entries of a queue of their own, which become registrations or planned chunks. Here they are
//! chunks from the beginning, in the state `joining`: claimed, leased, fenced, cancelled and counted as any other, with the
//! prompts in their own batch's spool. So whatever goes wrong with the other batch leads back to one step that asks again
//! who answers, and a chunk nobody answers for is planned as it stands. One that is planned and held up gives its questions
//! to a waiter that is not ([`domain::chunk::Standing`]): by the waiter's own script, and only while no dispatch has it, so
//! that whoever claims it next finds that it gave, and asks who answers before it sends anything.
//!
//! # How samples are counted in a run
//!
//! Within one batch repeats are counted in memory ([`pipeline::number`]). In a run they are counted in Redis, page by page
//! ([`store::runs`]). A number is held by every batch that drew it, until a commit there brings a failure: a success never
//! lets go of it. So an answer costs nothing to write down, and *held by nobody* means *free*.

// First, so that all others know its macro.
#[macro_use]
pub mod failpoint;

pub mod cli;
pub mod clock;
pub mod config;
pub mod domain;
pub mod http;
pub mod lifecycle;
pub mod pipeline;
pub mod provider;
pub mod sim;
pub mod store;
pub mod telemetry;
pub mod worker;
