//! The suite that every store must pass: what its traits promise, as tests.
//!
//! Each trait has a macro, and a store joins with one line in a test module. The four that
//! delivery needs ask for a [`DeliveryDatabase`]; the others for a [`TestDatabase`], which
//! has a whole store:
//!
//! ```ignore
//! event_host_store::delivery_suite!(JetStream::start()); // the first four
//! event_host_store::store_suite!(JetStream::start());    // all of them
//! ```
//!
//! The expression makes an empty database, another one for each test; whatever keeps it
//! alive lives in the value. The tests are tokio's, so the crate that joins depends on
//! tokio, with its macros.
#![allow(missing_docs, reason = "a promise is its own documentation")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what it expects by failing"
)]

pub mod dead_letters;
pub mod deferred;
pub mod deployments;
pub mod fetching;
pub mod fuzzed;
pub mod groups;
pub mod ingest;
pub mod leadership;
pub mod log;
pub mod partitions;
pub mod redeliveries;
pub mod retention;
mod samples;
pub mod schedules;
pub mod settling;
pub mod state;
pub mod tenants;

use std::sync::Arc;

use async_trait::async_trait;

use super::{DeliveryStore, Store};
use event_host_core::event::Event;

/// One database, empty at first, and gone with this value: with what delivery needs.
#[async_trait]
pub trait DeliveryDatabase: Send + Sync {
    /// A handle that is as independent of all others as another process's
    /// would be, with the schema up to date.
    async fn delivery(&self) -> Arc<dyn DeliveryStore>;

    /// Has every position up to this one be drawn, as by whoever rolls back, where the
    /// store settles no position that was not; or puts the log back to there.
    async fn drawn_up_to(&self, position: i64) {
        let _ = position;
    }

    /// Whether the rules of this database see what is wrong with an event that the host
    /// refuses, where they leave something to the host.
    fn sees_what_is_wrong_with(&self, event: &Event) -> bool {
        let _ = event;
        true
    }

    /// A text as this database keeps it: one that cannot hold a NUL keeps U+FFFD
    /// instead. Nothing that the host lets in has one.
    fn kept(&self, text: &str) -> String {
        text.to_owned()
    }
}

/// A database with a whole store.
#[async_trait]
pub trait TestDatabase: DeliveryDatabase {
    /// As [`DeliveryDatabase::delivery`] is.
    async fn handle(&self) -> Arc<dyn Store>;
}

/// Makes one test of each promise of what delivery needs; see [the module](crate::suite).
#[macro_export]
macro_rules! delivery_suite {
    ($database:expr) => {
        $crate::event_log_suite!($database);
        $crate::leases_suite!($database);
        $crate::settlements_suite!($database);
        $crate::state_store_suite!($database);
    };
}

/// Makes one test of each promise of a whole store; see [the module](crate::suite).
#[macro_export]
macro_rules! store_suite {
    ($database:expr) => {
        $crate::delivery_suite!($database);
        $crate::ingest_suite!($database);
        $crate::schedules_suite!($database);
        $crate::dead_letters_suite!($database);
        $crate::groups_suite!($database);
        $crate::deployments_suite!($database);
    };
}

/// Makes a test of each promise of [`EventLog`](crate::EventLog): for a [`DeliveryDatabase`].
#[macro_export]
macro_rules! event_log_suite {
    ($database:expr) => {
        $crate::promises! { $database =>
            fetching {
                types_and_prefixes_are_matched_by_their_bytes
                any_number_of_patterns_can_be_subscribed
                a_fetch_ends_at_its_byte_budget_and_gives_at_least_one_event
                a_fetch_says_how_far_it_looked
                a_fetch_beyond_the_safe_position_gives_nothing_and_goes_nowhere
                another_tenants_events_are_never_fetched
                events_that_were_put_back_leave_nothing_in_those_that_are_read_next
            }
            log {
                an_event_comes_back_as_it_was_published
                positions_grow_in_the_order_of_publishing
                batches_of_two_publishers_at_once_stand_whole
            }
            retention {
                an_event_that_is_retried_stays
            }
        }
    };
}

/// Makes a test of each promise of [`Leases`](crate::Leases): for a [`DeliveryDatabase`].
#[macro_export]
macro_rules! leases_suite {
    ($database:expr) => {
        $crate::promises! { $database =>
            groups {
                a_new_group_begins_where_its_start_says
            }
            leadership {
                each_leadership_raises_the_epoch
                a_mark_leaves_the_retry_that_waits_as_it_was
                an_attempt_that_is_withdrawn_is_not_known_to_the_next_leader
                a_clean_end_leaves_nothing_in_flight
                a_late_mark_is_refused
                a_group_is_led_by_one_session
                of_two_sessions_of_one_host_one_leads
                many_groups_are_claimed_at_once_and_answered_in_order
                a_claim_takes_what_the_dead_led_and_nothing_of_the_living
                a_claim_says_whether_there_may_be_redeliveries
                a_host_that_comes_back_finds_its_groups_taken
                a_session_that_is_dropped_gives_its_groups_back
                giving_back_what_was_never_led_does_nothing
                a_release_under_a_stale_epoch_does_nothing
                a_thousand_cycles_leave_nothing_led
                of_two_hosts_claiming_at_once_each_group_has_one
                a_duty_has_one_holder_until_that_gives_it_back_or_ends
                of_two_hosts_claiming_a_duty_at_once_one_has_it
                many_groups_are_made_and_changed_at_once
            }
            partitions {
                each_event_is_in_one_partition_which_its_key_or_its_position_says
                partitions_have_cursors_leaders_and_redeliveries_of_their_own
                new_partitions_begin_where_the_group_is_told_and_are_paused_with_it
                what_is_no_longer_subscribed_comes_again_after_a_repartition_only_where_it_was_retried
                a_group_is_not_repartitioned_under_a_leader
                what_is_retried_at_a_cursor_keeps_its_attempts_when_a_group_is_repartitioned
                a_partition_that_is_behind_keeps_events_in_the_log
                hosts_that_share_a_group_know_of_each_other_while_they_live
            }
        }
    };
}

/// Makes a test of each promise of [`Settlements`](crate::Settlements): for a [`DeliveryDatabase`].
#[macro_export]
macro_rules! settlements_suite {
    ($database:expr) => {
        $crate::promises! { $database =>
            deferred {
                what_is_due_comes_by_time_and_in_parts
                what_is_deferred_is_settled_with_the_rest_or_not_at_all
                thousands_of_events_are_deferred_at_once_and_a_few_are_due
            }
            redeliveries {
                a_redelivery_comes_back_as_it_was_settled
                a_redelivery_is_set_anew_until_it_is_over
                thousands_of_redeliveries_are_settled_at_once
                a_settlement_that_is_not_committed_leaves_redeliveries_as_they_were
                a_redelivery_above_the_cursor_is_refused
                redeliveries_are_there_for_whoever_leads_next
            }
            settling {
                a_settlement_without_a_head_forgets_the_retry
                emits_stand_in_their_order_and_reach_other_groups
            }
        }
    };
}

/// Makes a test of each promise of [`StateStore`](crate::StateStore): for a [`DeliveryDatabase`].
#[macro_export]
macro_rules! state_store_suite {
    ($database:expr) => {
        $crate::promises! { $database =>
            state {
                the_last_write_of_a_key_wins
                state_belongs_to_one_group_and_scope
                the_longest_keys_of_the_longest_groups_and_scopes_are_kept
                keys_are_listed_in_the_order_of_their_bytes
            }
        }
    };
}

/// Makes a test of each promise of [`Ingest`](crate::Ingest): for a [`TestDatabase`].
#[macro_export]
macro_rules! ingest_suite {
    ($database:expr) => {
        $crate::promises! { $database =>
            ingest {
                what_is_ingested_stands_in_the_order_of_the_requests_under_their_tenants
                an_event_that_comes_again_is_answered_with_its_position
                the_same_id_with_other_content_is_refused_with_all_of_its_request
                what_is_the_same_of_a_source_is_another_tenants_own
                what_is_known_besides_its_id_is_a_duplicate_under_another
                nothing_is_a_duplicate_without_a_window_and_after_it
                what_a_store_refuses_leaves_nothing_in_log_and_ledger
                the_same_request_from_many_at_once_is_there_once
                batches_in_opposite_orders_at_once_all_pass
                the_ledger_lets_go_of_what_is_over_and_of_the_oldest_beyond_a_number
                any_number_of_events_is_ingested_at_once
            }
        }
    };
}

/// Makes a test of each promise of [`Schedules`](crate::Schedules): for a [`TestDatabase`].
#[macro_export]
macro_rules! schedules_suite {
    ($database:expr) => {
        $crate::promises! { $database =>
            schedules {
                a_schedule_is_done_up_to_now_when_it_is_registered
                a_schedule_with_another_time_goes_on_from_now
                a_tick_and_its_events_are_written_together
                a_tick_is_refused_that_is_done_or_early_or_of_no_schedule
                of_hosts_that_publish_at_once_each_tick_is_published_once
                a_schedule_that_a_host_has_is_not_forgotten
            }
        }
    };
}

/// Makes a test of each promise of [`DeadLetters`](crate::DeadLetters): for a [`TestDatabase`].
#[macro_export]
macro_rules! dead_letters_suite {
    ($database:expr) => {
        $crate::promises! { $database =>
            dead_letters {
                a_dead_letter_keeps_everything
                a_replay_reaches_only_its_group_and_keeps_the_event
                a_replay_can_change_the_data_and_nothing_else
                a_replay_can_name_the_component_that_handles_the_event
                a_replay_that_names_no_component_of_its_tenant_changes_nothing
                a_replay_never_moves_a_cursor
                of_two_replays_of_one_dead_letter_one_runs
                two_replays_of_all_split_the_work
                some_are_replayed_within_their_bounds
                dead_letters_are_listed_page_by_page
                a_dead_letter_is_discarded_once
                the_number_of_a_dead_letter_is_never_used_again
                a_dead_letter_that_is_not_whole_is_never_replayed
            }
            tenants {
                what_a_tenant_keeps_is_counted_over_its_groups_and_no_others
            }
        }
    };
}

/// Makes a test of each promise of [`Groups`](crate::Groups), and what the subjects before it promise that only a whole store shows: for a [`TestDatabase`].
#[macro_export]
macro_rules! groups_suite {
    ($database:expr) => {
        $crate::promises! { $database =>
            deferred {
                a_deferred_event_is_kept_whole_though_the_log_lets_it_go
                the_deferred_event_of_a_marked_attempt_is_known_to_the_next_leader
                a_seek_forgets_what_the_log_brings_again_and_keeps_what_it_does_not
                a_removed_group_takes_what_is_deferred_along
                status_counts_what_is_deferred_apart
                what_is_deferred_goes_along_when_a_group_is_repartitioned
                an_event_for_later_than_a_year_is_refused
            }
            fetching {
                an_event_for_one_group_reaches_that_group_alone
            }
            fuzzed {
                what_the_host_lets_in_is_kept_as_it_is
                what_a_line_gives_is_kept_as_it_is
                what_the_host_refuses_a_store_refuses
            }
            groups {
                an_existing_group_keeps_its_cursor_and_takes_over_the_subscription
                a_group_never_changes_its_tenant
                a_place_beyond_the_log_is_refused
                a_seek_raises_the_epoch_and_refuses_the_open_batch
                a_seek_goes_where_it_is_told
                a_pause_shows_its_reason_until_the_group_is_resumed
                a_remark_is_shown_until_it_is_taken_back
                a_leader_trips_its_group_and_lets_it_go_on_again
                a_group_with_dead_letters_or_a_leader_is_not_removed
                a_removed_group_leaves_nothing_behind
                a_group_that_does_not_exist_is_not_found
                status_counts_what_the_group_has_before_it
                what_a_group_has_done_is_counted_with_what_it_settles
                the_first_event_of_many_groups_that_are_far_behind_is_known
                what_status_counts_is_bounded_and_exact_where_it_is_asked
            }
            leadership {
                a_former_leader_cannot_commit_anything
                leaderships_that_settle_nothing_are_counted
                a_crash_leaves_behind_what_was_in_flight
                a_leader_is_shown_only_while_it_holds_the_lock
                what_is_watched_of_groups_has_a_version
            }
            log {
                what_is_no_event_is_refused_whoever_publishes_it
                an_attribute_may_have_its_bound_and_not_a_byte_more
                a_publish_is_all_or_none
            }
            partitions {
                dead_letters_and_state_are_the_whole_groups
                status_has_the_partitions_and_their_sums
                what_an_operator_does_is_done_to_all_partitions
                a_group_that_is_repartitioned_loses_and_repeats_nothing
                a_new_subscription_that_comes_with_other_partitions_holds_for_all_above_each_cursor
                what_failed_so_far_is_counted_however_a_group_is_split
                two_that_repartition_a_group_at_once_do_it_once
                a_group_that_keeps_too_much_lets_go_with_all_its_partitions
            }
            redeliveries {
                a_seek_forgets_the_redeliveries_above_it
                of_a_seek_and_settlements_at_once_no_redelivery_stays_above_the_cursor
                a_removed_group_takes_its_redeliveries_along
                status_counts_what_is_parked_and_says_what_is_due_next
                status_counts_what_is_delivered_later_as_parked_and_not_as_a_retry
                events_are_found_at_their_positions
            }
            retention {
                events_go_once_every_group_has_settled_them
                the_group_that_pins_the_log_is_named
                what_is_young_or_little_stays
                no_position_is_used_again_when_all_events_are_gone
                new_groups_and_cursors_that_go_back_begin_with_what_is_left
                a_cursor_that_goes_back_to_what_is_gone_is_told_what_is_missing
                a_dead_letter_outlives_its_event
                an_event_that_comes_again_stays_with_all_that_follow
                never_an_event_above_a_cursor_whatever_happens_at_once
            }
            settling {
                a_settlement_commits_everything_it_holds
                a_settlement_that_breaks_off_leaves_nothing
                a_late_copy_of_a_settlement_is_refused
                the_numbers_of_settlements_go_on_whoever_leads
                of_two_copies_of_a_settlement_at_once_one_commits
                a_head_comes_back_as_it_was_settled
                odd_text_never_breaks_a_settlement
                of_two_settlements_at_once_under_two_epochs_only_the_current_commits
                failures_are_counted_with_the_settlement_and_known_to_the_next_leader
            }
        }
    };
}

/// Makes a test of each promise of [`Deployments`](crate::Deployments): for a [`TestDatabase`].
#[macro_export]
macro_rules! deployments_suite {
    ($database:expr) => {
        $crate::promises! { $database =>
            deployments {
                a_component_comes_back_as_it_was_deployed
                versions_count_up_and_the_newest_is_active
                what_is_active_is_not_deployed_again
                a_rollback_never_goes_to_what_was_rolled_back
                a_rollback_that_has_nowhere_to_go_changes_nothing
                a_tenant_sees_nothing_of_anothers_components
                of_deployments_at_once_each_is_a_version
                deployments_and_rollbacks_at_once_leave_one_version_active
                components_are_found_by_how_their_digests_begin
            }
        }
    };
}

/// The tests of these promises, by the module that has them.
#[doc(hidden)]
#[macro_export]
macro_rules! promises {
    ($database:expr => $($module:ident { $($promise:ident)* })*) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                $crate::suite::$module::$promise(&$database).await;
            }
        )*)*
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    /// Every source of the suite's folder, by its name.
    fn sources() -> BTreeMap<String, String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/suite");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        files
            .map(|file| {
                let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read_to_string(file).unwrap())
            })
            .collect()
    }

    /// The promises of these sources that the macros do not list once, in the block of
    /// their module.
    fn not_listed_once(sources: &BTreeMap<String, String>) -> Vec<String> {
        let mut listed: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let mut module = None;
        for line in sources["mod"].lines().map(str::trim) {
            match line.strip_suffix(" {") {
                Some(name) => module = Some(name),
                None => *listed.entry((module.unwrap_or_default(), line)).or_default() += 1,
            }
        }
        // A promise is what is given a database; what else is there, stores call by themselves.
        let promises = sources.iter().flat_map(|(module, source)| {
            let functions = source.split("\npub async fn ").skip(1);
            let functions = functions.filter_map(|function| function.split_once('('));
            let promises = functions.filter(|(_, rest)| rest.trim_start().starts_with("database:"));
            promises.map(move |(name, _)| (module.as_str(), name))
        });
        let wrong = promises.filter(|promise| listed.get(promise) != Some(&1));
        wrong.map(|(module, promise)| format!("{module}::{promise}")).collect()
    }

    #[test]
    fn no_promise_is_left_out() {
        let sources = sources();
        assert!(sources.len() > 10, "{:?}", sources.keys());
        assert_eq!(not_listed_once(&sources), [""; 0]);
    }

    #[test]
    fn a_promise_that_no_macro_lists_is_found() {
        let mut sources = sources();
        let list = &sources["mod"];
        let left_out = "                a_group_is_led_by_one_session\n";
        assert!(list.contains(left_out));
        let (without, twice) =
            (list.replace(left_out, ""), list.replace(left_out, &left_out.repeat(2)));
        for list in [without, twice] {
            sources.insert("mod".to_owned(), list);
            assert_eq!(not_listed_once(&sources), ["leadership::a_group_is_led_by_one_session"]);
        }
        sources.insert(
            "unlisted".to_owned(),
            "\npub async fn a_new_promise(database: &dyn TestDatabase".to_owned(),
        );
        assert!(not_listed_once(&sources).contains(&"unlisted::a_new_promise".to_owned()));
    }
}
