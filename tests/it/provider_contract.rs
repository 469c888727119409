//! One suite of promises that every provider adapter keeps, run against two simulators: the referee (Python, written by
//! others from the contract) and `batchgate sim`. A simulator that cannot be started fails the test; nothing is skipped.
//!
//! Each check gets a simulator that was just reset, an account of one provider, and nothing else. A new promise is one
//! function and one line below.
#![expect(clippy::panic, reason = "a check says what it saw")]

mod calls;
mod desk;
mod doubts;
mod downloads;
mod endpoints;
mod lists;
mod lives;
mod readings;

use crate::support::{
    dir::Dir,
    sim::{self, Sim},
};
use batchgate::provider::registry::Kind;
use desk::Desk;
use std::{future::Future, pin::Pin, sync::Arc};

type Check = (&'static str, fn(Desk) -> Pin<Box<dyn Future<Output = ()> + Send>>);

macro_rules! checks {
    ($($module:ident::$name:ident),* $(,)?) => {
        [$((stringify!($name), |desk| Box::pin($module::$name(desk)))),*]
    };
}

const CHECKS: &[Check] = &checks![
    lives::answers_come_back_to_their_prompts,
    lives::a_large_parcel_is_sent_in_pieces_of_the_planned_size,
    lives::all_may_fail,
    lives::every_kind_of_failure_has_its_code,
    lives::what_the_window_cut_off_is_expired,
    lives::what_was_done_before_a_cancel_is_kept,
    lives::an_ended_batch_can_be_cancelled_in_vain,
    lives::the_token_limit_is_back_pressure,
    lives::bad_lines_are_named,
    lives::a_lost_input_is_told_from_a_bad_one,
    lives::an_input_is_discarded_once_or_twice,
    lives::unknown_status_words_mean_running,
    lives::empty_file_ids_mean_no_file,
    readings::readings_follow_the_markers,
    readings::a_lone_surrogate_is_still_a_success,
    readings::numbers_and_spaces_of_a_body_are_the_providers,
    endpoints::responses_come_back_to_their_prompts,
    endpoints::responses_follow_the_markers,
    endpoints::completions_come_back_to_their_prompts,
    endpoints::vectors_belong_to_their_inputs,
    endpoints::a_huge_vector_is_an_answer,
    endpoints::inputs_beyond_the_limit_are_refused_whole,
    endpoints::moderations_judge_each_input,
    endpoints::both_versions_of_anthropic_are_asked,
    downloads::spoiled_lines_cost_only_themselves,
    downloads::line_ends_marks_and_blanks_do_not_matter,
    downloads::a_huge_line_is_a_line,
    downloads::a_short_download_is_an_error_in_every_framing,
    downloads::a_whole_download_that_ends_by_closing_is_whole,
    downloads::a_slow_download_is_not_a_dead_one,
    downloads::results_may_be_late,
    downloads::a_redirect_is_followed_but_no_key_leaves_the_house,
    doubts::a_reset_before_the_create_leaves_nothing_to_find,
    doubts::a_reset_after_the_create_leaves_a_batch_to_find,
    doubts::server_errors_on_create_are_doubts,
    doubts::a_batch_hidden_from_the_list_is_found_later,
    doubts::only_our_own_batches_are_found,
    doubts::a_long_list_is_read_page_by_page,
    doubts::what_never_left_was_not_created,
    lists::the_list_says_whose_each_batch_is_and_how_far,
    lists::a_long_walk_meets_every_batch_once,
    lists::every_key_s_batches_are_walked,
    lists::a_list_that_cannot_be_read_is_no_empty_list,
    calls::retry_after_is_handed_on,
    calls::wrong_keys_pause_and_name_no_key,
    calls::a_second_key_reads_but_never_creates,
    calls::errors_mean_what_the_table_says,
    calls::refused_creates_are_no_doubts,
    calls::a_silent_provider_is_given_up,
    calls::a_fresh_batch_may_not_be_visible_yet,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_adapters_keep_their_promises_with_the_referee() {
    run(sim::Kind::Referee).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_adapters_keep_their_promises_with_our_simulator() {
    run(sim::Kind::Ours).await;
}

/// Every check for every provider, one after another, and only then the verdict: one broken promise hides no other.
async fn run(player: sim::Kind) {
    let dir = Dir::new();
    let simulator = Arc::new(Sim::start(player, dir.path()).await);
    let mut broken = Vec::new();
    for (name, check) in CHECKS {
        for kind in [Kind::OpenAi, Kind::Anthropic] {
            simulator.reset().await;
            let desk = Desk::new(Arc::clone(&simulator), kind);
            if tokio::spawn(check(desk)).await.is_err() {
                broken.push(format!("{name} ({kind:?})"));
            }
        }
    }
    assert!(broken.is_empty(), "broken with {player:?}:\n  {}", broken.join("\n  "));
}
