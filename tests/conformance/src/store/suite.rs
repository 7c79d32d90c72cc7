//! The list of cases, and the macro that makes each of them a test.

/// One test per case of the store's suite; `$start` is an async function that returns an
/// [`UnderTest`](crate::store::UnderTest).
#[macro_export]
macro_rules! store_suite {
    ($start:ident) => {
        $crate::store_cases! { $start;
            mod batches {
                items_come_in_the_order_asked,
                nothing_asked_is_nothing_found,
                any_number_can_be_asked_for,
                a_batch_may_span_tables,
                puts_and_deletes_go_together,
                the_last_write_of_a_key_wins,
                a_wrong_key_is_refused,
                a_missing_table_fails_the_batch,
            }
            mod changes {
                changes_come_in_order_with_both_images,
                every_way_to_write_is_in_the_stream,
                what_changes_nothing_is_not_in_the_stream,
                reading_goes_on_after_a_change,
                the_latest_is_what_comes_from_now_on,
                a_read_gives_no_more_than_asked,
                a_table_without_stream_says_so,
            }
            mod conditions {
                a_put_if_missing_happens_once,
                a_failed_condition_shows_what_it_met,
                nothing_stored_is_met_as_nothing,
                comparisons_hold_as_the_model_says,
                every_kind_can_be_equal,
                conditions_can_be_combined,
                a_value_only_moves_forward,
            }
            mod indexes {
                an_index_finds_items_in_its_order,
                an_index_with_all_attributes_has_them_all,
                an_index_of_keys_has_only_keys,
                what_lacks_the_index_key_is_not_in_it,
                an_index_follows_changes,
                items_with_the_same_index_key_are_all_found,
                a_page_of_an_index_goes_on_after_a_deleted_item,
                an_index_may_be_asked_for_a_strong_read,
                an_index_key_must_fit,
            }
            mod items {
                a_missing_item_is_none,
                every_kind_of_value_comes_back,
                a_put_replaces_the_whole_item,
                a_put_tells_what_was_there,
                a_delete_tells_what_was_there,
                only_updates_tell_what_is_new,
                a_check_alone_is_refused,
                any_attribute_name_works,
                an_ordered_write_is_seen_at_once,
                an_eventual_get_sees_it_in_the_end,
                a_missing_table_is_named,
            }
            mod keys {
                an_empty_key_is_refused,
                a_key_of_another_kind_is_refused,
                an_incomplete_key_is_refused,
                a_key_with_too_much_is_refused,
                keys_have_a_length,
                keys_are_compared_byte_by_byte,
                bytes_can_be_keys,
                numbers_are_the_same_key_however_written,
            }
            mod limits {
                an_item_may_be_as_large_as_the_limit,
                a_larger_item_is_refused,
                an_update_cannot_grow_an_item_too_large,
                numbers_come_back_exactly,
                an_attribute_may_be_empty,
                a_set_may_not_be_empty,
                a_sum_that_is_no_number_is_refused,
            }
            mod model {
                random_writes_do_as_the_model,
                random_transactions_do_as_the_model,
            }
            mod queries {
                a_partition_comes_in_order,
                an_empty_partition_is_an_empty_page,
                every_bound_is_kept,
                a_range_that_holds_nothing_is_empty,
                pages_join_to_the_whole,
                a_page_goes_on_after_a_deleted_item,
                a_limit_of_nothing_is_refused,
                a_page_ends_after_a_megabyte,
                numbers_are_sorted_by_value,
                texts_are_sorted_by_their_bytes,
                bytes_are_sorted_without_sign,
                a_prefix_finds_what_begins_with_it,
                a_table_without_sort_key_has_partitions_of_one,
                a_query_must_fit_the_keys,
                a_missing_index_is_named,
            }
            mod scans {
                an_empty_table_has_nothing,
                a_scan_finds_each_item_once,
                segments_share_the_table,
                a_scan_goes_on_after_a_deleted_item,
                a_segment_must_be_one_of_them,
            }
            mod tables {
                a_table_is_described_as_it_was_made,
                a_table_that_exists_is_left_alone,
                a_dropped_table_is_gone,
                a_table_made_again_is_empty,
            }
            mod transactions {
                all_kinds_of_writes_go_together,
                all_or_nothing_and_the_reasons_in_place,
                checks_alone_are_a_transaction,
                a_hundred_writes_and_no_more,
                an_item_is_written_once,
                a_repeated_token_is_not_done_twice,
                a_token_of_other_writes_is_refused,
                a_canceled_transaction_can_be_tried_again,
                a_token_has_a_length,
                a_write_that_cannot_be_done_is_named,
                a_transaction_has_a_size,
                concurrent_transactions_do_not_lose_each_other,
            }
            mod ttl {
                a_get_hides_what_has_ended,
                a_batch_get_hides_what_has_ended,
                a_query_hides_what_has_ended,
                a_scan_hides_what_has_ended,
                an_index_hides_what_has_ended,
                an_ended_item_can_be_put_again,
            }
            mod updates {
                an_update_makes_the_item,
                an_update_without_actions_makes_the_item,
                every_action_does_what_it_says,
                an_update_tells_what_was_asked,
                what_an_update_removed_is_not_told,
                numbers_are_added_exactly,
                what_is_no_number_is_not_added_to,
                keys_cannot_be_updated,
                an_attribute_is_named_once,
                concurrent_adds_give_distinct_values,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_cases {
    ($start:ident; $(mod $file:ident { $($case:ident,)* })*) => { $(
        mod $file { $(
            #[tokio::test]
            async fn $case() {
                let under_test = super::$start().await;
                $crate::store::$file::$case(under_test.store()).await;
            }
        )* }
    )* };
}
