//! The list of cases, and the macro that makes each of them a test.

/// One test per case of the stream's suite; `$start` is an async function that returns an
/// [`UnderTest`](crate::store::UnderTest).
#[macro_export]
macro_rules! stream_suite {
    ($start:ident) => {
        $crate::stream_cases! { $start;
            mod sharing {
                workers_share_the_shards,
                who_comes_later_gets_a_share,
                an_item_keeps_its_order_while_shards_split,
                a_child_waits_for_what_is_open_of_its_parent,
                what_is_not_done_comes_again,
                who_closes_leaves_what_is_not_done_to_others,
                what_the_dead_left_undone_is_done_by_others,
                who_comes_again_goes_on_at_once,
                who_cannot_keep_its_leases_hands_nothing_out_and_learns_that_they_are_gone,
                who_reads_in_turn_misses_nothing,
                a_shard_that_was_let_go_is_gone,
                two_groups_are_two_readers_of_a_shard,
                a_list_that_is_behind_takes_nothing_for_lost,
                a_refusal_to_open_takes_nothing_for_lost,
                how_far_behind_is_told,
            }
            mod trimming {
                lost_changes_are_answered_by_a_scan_that_rejoins_the_tail,
                a_scan_whose_worker_dies_goes_on,
                shards_that_are_gone_are_answered_by_a_scan,
                changes_lost_while_reading_are_noticed,
                changes_lost_before_anything_was_done_are_noticed,
                nothing_stands_in_for_lost_changes_where_nothing_is_wanted,
                a_scan_that_is_throttled_is_begun_later,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! stream_cases {
    ($start:ident; $(mod $file:ident { $($case:ident,)* })*) => { $(
        mod $file { $(
            // Two workers of the runtime: those of the group should meet in the store, and not take turns.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let under_test = super::$start().await;
                $crate::stream::$file::$case(under_test.store()).await;
            }
        )* }
    )* };
}
