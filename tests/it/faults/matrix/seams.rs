//! The table of seams, in the order of `src/failpoint.rs`: where, who comes by, what must happen, and what becomes of the
//! batch if the process dies there. Each row becomes a test for each kind of provider that comes by.

use super::{Asked, Seam, Story, run};

macro_rules! seams {
    ($($point:ident, $asked:ident, $story:ident, $fate:literal;)+) => {
        pub(super) const SEAMS: &[Seam] = &[
            $(Seam { point: stringify!($point), story: Story::$story, asked: seams!(@list $asked), fate: $fate }),+
        ];
        $(mod $point { seams!(@tests $point, $asked); })+
    };
    (@list all) => { &[Asked::Anthropic, Asked::OpenAi, Asked::Online] };
    (@list batches) => { &[Asked::Anthropic, Asked::OpenAi] };
    (@list openai) => { &[Asked::OpenAi] };
    (@list online) => { &[Asked::Online] };
    (@tests $point:ident, all) => { seams!(@tests $point, batches); seams!(@tests $point, online); };
    (@tests $point:ident, batches) => { seams!(@test $point, anthropic, Anthropic); seams!(@tests $point, openai); };
    (@tests $point:ident, openai) => { seams!(@test $point, openai, OpenAi); };
    (@tests $point:ident, online) => { seams!(@test $point, online, Online); };
    (@test $point:ident, $name:ident, $asked:ident) => {
        #[tokio::test]
        async fn $name() {
            super::run(stringify!($point), super::Asked::$asked).await;
        }
    };
}

seams! {
    upload_entered, all, Batch, "Nothing was written; the sweeper removes the entry after ten idle minutes. The client sends again.";
    page_half_written, all, Batch, "The sweeper takes the entry after ten idle minutes, then the pages. The client sends again.";
    accepting, all, Batch, "Pages and chunks are there, the batch is not: swept as above. The client sends again.";
    accepted, all, Batch, "The batch exists and runs; the client, who has no answer, finds it in the list or by its Idempotency-Key.";
    upload_undone, all, Refused, "Run numbers are given back, pages not yet removed: the sweeper does the rest.";
    numbers_given_back, all, Run, "The chore `draws` gives back what is left; twice changes nothing.";
    retry_frame_read, all, Retry, "As in any upload: nothing exists, the old batch was only read. The client asks again.";
    marked, all, Batch, "Questions are marked, the batch is not there: whoever meets the marks waits for 20 seconds, and then asks.";
    claimed, all, Batch, "The claim runs out; the chunk is claimed again, one reclaim later.";
    reserving, openai, Batch, "Nothing is reserved; as after the claim.";
    reserved, openai, Batch, "The tokens stay reserved under the chunk's name; its next dispatch finds its own reservation.";
    input_uploaded, openai, Batch, "The file's id is lost: it is uploaded once more, unbilled, and the first expires by itself.";
    intended, batches, Batch, "In doubt: the provider's list is looked at twice, nothing is found, it is sent.";
    created, batches, Batch, "In doubt: the provider's list shows it, and it is adopted.";
    id_stored, batches, Batch, "Nothing is lost: it is polled when it is due.";
    looking, batches, Doubt, "Still in doubt: looked for again once the claim runs out.";
    found, batches, Doubt, "Still in doubt: found again.";
    marks_taken, all, Join, "Marks name a chunk that waits: its next dispatch finds them and plans, or registers.";
    registering, all, Join, "Not registered: its next dispatch does so, or finds the answers in the cache.";
    registered, all, Join, "Registered: the commit it waits for serves it all the same.";
    cancel_noted, all, Cancel, "The batch is canceling; workers see it. The client cancels again.";
    cancel_sent, batches, Cancel, "The provider cancels; it is asked once more, which changes nothing.";
    ended, batches, Batch, "Still running for us: polled again.";
    answers_staged, batches, LargeChunk, "The next dispatch reads all results anew; what was staged is swept under its dead token.";
    answer_came, online, Batch, "Paid and not noted: what was in the air is asked again, at most one prompt a seat.";
    noting, online, Batch, "As before: a seat is left only once its answer is noted.";
    noted, online, Batch, "What is noted is not asked again; the next dispatch goes on behind it.";
    fragments_written, all, Batch, "Nobody reads them yet; the next dispatch writes its own, these are swept.";
    before_exec, all, Batch, "Nothing of the transaction happened; as before.";
    after_exec, all, Batch, "The chunk is settled; staged answers that found an older one in the cache are swept.";
    settled, all, Batch, "Its tokens stay reserved until somebody finds no room and looks for settled ones; the input file expires.";
    page_complete, all, Batch, "The page is still in the seal queue, leased: another sealer takes it.";
    page_written, all, Batch, "The frames die by themselves; another sealer writes its own.";
    page_sealed, all, Batch, "The page is sealed; what it was made of is removed by the batch's chore.";
    chore_taken, all, Batch, "The chore is leased for a minute, and then another's.";
    chore_done, all, Batch, "It is done once more, which changes nothing.";
    draining, all, Stop, "What was in hand is claimed again when its claim runs out; nothing new was begun.";
    drained_round, online, Stop, "What was heard is noted; the claim runs out and the rest is asked.";
}
