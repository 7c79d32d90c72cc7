//! The list of cases, and the macro that makes each of them a test.

/// One test per case of the model's suite; `$start` is an async function that returns an
/// [`UnderTest`](crate::store::UnderTest) with the product's tables.
#[macro_export]
macro_rules! model_suite {
    ($start:ident) => {
        $crate::model_cases! { $start;
            mod chat_counters {
                concurrent_allocations_share_the_sequences,
                each_chat_counts_by_itself,
                a_missing_counter_is_not_made_on_the_fly,
                a_counter_is_made_once_and_never_set_back,
                an_allocation_says_when,
                counters_come_in_the_order_asked,
            }
            mod chat_memberships {
                adding_twice_keeps_the_role,
                of_many_who_add_somebody_one_does,
                a_removed_member_is_gone_at_once,
                a_role_is_given_to_members_only,
                membership_is_of_one_chat,
                a_thousand_members_are_listed_by_parts,
                a_list_goes_on_after_a_member_who_left,
                a_users_chats_are_found_by_the_index,
                the_index_follows_roles_and_removals,
            }
            mod chats {
                a_chat_is_made_with_counter_and_members,
                a_chat_that_exists_is_not_made_again,
                a_direct_chat_has_no_name,
                a_new_name_changes_nothing_else,
                chats_come_in_the_order_asked,
                of_all_owners_one_stays,
                a_group_forms_before_it_is_there,
                members_are_counted_once,
            }
            mod delivery_state {
                a_watermark_moves_forward_only,
                concurrent_acks_end_at_the_highest,
                a_users_states_are_found_one_by_one_and_together,
                a_users_states_are_listed_by_parts,
                unread_chats_are_those_with_more,
            }
            mod idempotency_keys {
                a_new_key_is_not_known,
                a_known_key_tells_who_uses_it_for_what,
                a_key_is_put_once,
                a_key_belongs_to_its_chat,
                a_key_that_has_ended_is_new,
                a_key_is_kept_for_seven_days,
            }
            mod messages {
                a_message_comes_back_whole,
                messages_after_a_sequence_come_oldest_first,
                recent_messages_come_newest_first,
                messages_before_a_sequence_leave_it_out,
                a_chat_without_messages_is_empty,
                a_long_history_comes_in_parts_by_its_size,
                a_message_is_never_overwritten,
            }
            mod restricted {
                a_grant_is_enough_for_its_work,
                fanout_cannot_write_anything,
                what_was_not_granted_cannot_be_read,
                one_table_outside_the_grant_refuses_the_transaction,
                following_is_granted_by_itself,
            }
            mod sending {
                a_message_is_stored_with_its_key,
                a_known_key_refuses_the_message_too,
                a_taken_sequence_refuses_the_key_too,
                sending_the_same_again_is_refused_in_both_places,
                of_many_retries_one_is_stored,
                fifty_messages_go_together,
                one_known_key_among_fifty_is_named,
                a_key_that_has_ended_can_be_sent_again,
            }
            mod sessions {
                a_session_is_valid_until_its_end,
                a_session_id_is_given_once,
                an_ended_session_is_hidden,
                a_users_sessions_are_found_by_the_index,
                a_revoked_session_is_gone,
                signing_out_everywhere_leaves_the_others,
                a_refresh_token_is_spent_once,
                a_session_is_current_at_once,
                the_sessions_of_a_device_are_apart_from_the_others,
            }
            mod users {
                a_user_is_found_by_phone,
                a_user_is_made_once,
                users_come_in_the_order_asked,
                an_edit_changes_what_it_names,
                an_edit_makes_nobody,
                whoever_registers_can_sign_in_at_once,
                of_many_who_register_a_number_one_gets_it,
                a_code_stands_a_few_attempts_in_all,
                a_phone_number_is_no_user,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! model_cases {
    ($start:ident; $(mod $file:ident { $($case:ident,)* })*) => { $(
        mod $file { $(
            // Two workers: what cases do at once should meet in the store, and not take turns.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let under_test = super::$start().await;
                $crate::model::$file::$case(under_test.store()).await;
            }
        )* }
    )* };
}
