//! What every log must do.
//!
//! Cases are functions that take a [`Bench`]; [`log_suite!`](crate::log_suite) makes a test of each for one
//! server. Topics and groups have names of their own per case, so that cases run side by side on one server.
//! A stand-in that lacks something names the parts it runs, with
//! [`log_reading_and_writing!`](crate::log_reading_and_writing), [`log_topics!`](crate::log_topics) and
//! single cases; nothing is left out without being seen there.
#![allow(clippy::unwrap_used, clippy::match_wild_err_arm, reason = "cases are tests, and fail by panicking")]

mod bench;
pub mod groups;
pub mod reading;
pub mod resetting;
pub mod times;
pub mod topics;
pub mod writing;

pub use bench::{Bench, LogServer, run};

/// Every case, each as a test. Takes a function that returns the server, as `Arc<impl LogServer>`.
#[macro_export]
macro_rules! log_suite {
    ($server:path) => {
        $crate::log_reading_and_writing!($server);
        $crate::log_topics!($server);
        $crate::log_handover!($server);
        $crate::log_cases!($server, times, [offsets_are_found_by_time, a_time_after_everything_is_the_end]);
        $crate::log_cases!(
            $server,
            resetting,
            [a_group_starts_where_it_was_reset_to, a_group_with_members_is_not_reset]
        );
    };
}

/// What needs a server that lets a member commit while its group is being rebalanced, however long that takes.
#[macro_export]
macro_rules! log_handover {
    ($server:path) => {
        mod handover {
            #[allow(unused_imports, reason = "the server may be named by a path from outside")]
            use super::*;
            $crate::log_cases!($server, groups, [a_partition_moves_only_when_its_holder_is_done]);
        }
    };
}

/// What needs a server that makes topics.
#[macro_export]
macro_rules! log_topics {
    ($server:path) => {
        $crate::log_cases!(
            $server,
            topics,
            [
                a_topic_is_created_described_and_deleted,
                creating_a_topic_again_changes_nothing,
                a_deleted_topic_comes_back_empty,
                what_is_not_there_cannot_be_deleted,
                limits_on_what_is_kept_are_described,
                more_copies_than_brokers_are_warned_of,
            ]
        );
    };
}

/// What needs a server that appends, reads and has groups, and nothing else.
#[macro_export]
macro_rules! log_reading_and_writing {
    ($server:path) => {
        $crate::log_cases!(
            $server,
            writing,
            [
                records_of_a_key_come_back_in_order,
                answers_say_where_records_are,
                headers_come_back_as_they_were,
                keys_and_payloads_may_be_absent_empty_or_binary,
                the_largest_record_fits_and_one_byte_more_does_not,
                a_key_stays_in_its_partition,
                ten_thousand_records_stay_in_order,
                a_call_without_records_has_no_answers,
                a_topic_that_is_not_there_is_named,
                calls_side_by_side_lose_nothing,
            ]
        );
        $crate::log_cases!(
            $server,
            reading,
            [
                watermarks_say_what_a_partition_holds,
                reading_starts_at_any_offset,
                reading_waits_for_what_is_written_later,
                an_offset_outside_the_log_is_an_error,
                a_partition_that_is_not_there_is_named,
                a_fetch_brings_no_more_than_asked,
                a_dropped_fetch_loses_nothing,
                a_paused_partition_gives_nothing_until_it_is_resumed,
                lag_counts_what_waits,
                times_never_fall_within_a_partition,
            ]
        );
        $crate::log_cases!(
            $server,
            groups,
            [
                a_group_goes_on_where_it_committed,
                a_new_group_starts_where_it_asks_to,
                who_begins_at_the_end_and_reads_nothing_goes_on_from_there,
                two_members_share_the_partitions_and_read_nothing_twice,
                a_member_that_leaves_hands_over,
                a_dropped_member_leaves,
                groups_do_not_see_each_other,
                what_a_group_committed_can_be_asked,
                commits_do_not_move_backwards,
                commits_for_partitions_of_others_are_refused,
                a_dropped_fetch_of_a_member_loses_nothing,
                a_member_reads_several_topics,
            ]
        );
    };
}

/// Single cases of one module, as tests.
#[macro_export]
macro_rules! log_cases {
    ($server:path, $module:ident, [$($case:ident),* $(,)?]) => {
        mod $module {
            #[allow(unused_imports, reason = "the server may be named by a path from outside")]
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::log::run($server(), stringify!($case), $crate::log::$module::$case);
                }
            )*
        }
    };
}
