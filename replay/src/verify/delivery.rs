//! Watermarks with the counters of their chats. A counter only grows and is read after the watermark, so a watermark
//! beyond it is wrong at any moment.

use std::sync::Arc;

use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::chats;
use courant_connectors::model::tables::delivery_state::{self, DeliveryState, SCHEMA};
use courant_connectors::store::{Consistency, Item};

use super::Result;
use super::chats::members_of;
use super::checks;
use super::context::Context;
use super::pages::{each_page, work};
use super::reads::strongly;
use super::report::Example;

pub(super) async fn run(context: &Arc<Context>) -> Result<()> {
    let chats = context.options.chats.len();
    if chats == 0 {
        return each_page(context, &SCHEMA, check_page).await;
    }
    // Kept by user: those of a chat are found by its members.
    work(context, chats, |context, chat| async move {
        let chat = &context.options.chats[chat];
        let members = members_of(&context, chat).await?;
        let gets = members.iter().map(|member| delivery_state::lookup(&member.user_id, chat)).collect();
        let items: Vec<Item> = context.reads.get_all(gets).await?.into_iter().flatten().collect();
        context.advance(items.len());
        check_page(Arc::clone(&context), items).await
    })
    .await
}

async fn check_page(context: Arc<Context>, items: Vec<Item>) -> Result<()> {
    let states = context.records(&SCHEMA, &items, DeliveryState::from_item);
    drop(items);
    if context.wants(&checks::WATERMARK_FORWARD) {
        for state in &states {
            let lookup = strongly(delivery_state::lookup(&state.user_id, &state.chat_id));
            context.samples.watermarks.add(lookup, state.last_acked_sequence);
        }
    }
    if !context.wants_any(&[&checks::WATERMARK_BOUND, &checks::WATERMARK_CHAT]) {
        return Ok(());
    }
    context.looked_at(&checks::WATERMARK_BOUND, states.len());
    context.looked_at(&checks::WATERMARK_CHAT, states.len());
    let lookup = |state: &DeliveryState| chat_counters::lookup(&state.chat_id, Consistency::Strong);
    let found = context.reads.get_all(states.iter().map(lookup).collect()).await?;
    for (state, counter) in states.iter().zip(found) {
        let example = || Example::of(&state.chat_id).with(&state.user_id).at(highest(state));
        match counter.as_ref().map(ChatCounter::from_item) {
            None => {
                if is_of_no_chat(&context, state).await? {
                    let detail = "acknowledged in a chat that is not there";
                    context.found(&checks::WATERMARK_CHAT, example().saying(detail));
                }
            }
            Some(Ok(counter)) if highest(state) > counter.sequence_counter => {
                let detail = format!("acknowledged, and the counter is at {}", counter.sequence_counter);
                context.found(&checks::WATERMARK_BOUND, example().saying(detail));
            }
            // One that cannot be read is told where counters are.
            Some(_) => {}
        }
    }
    Ok(())
}

/// What has arrived or was read.
pub(crate) fn highest(state: &DeliveryState) -> u64 {
    state.last_acked_sequence.max(state.read_sequence)
}

/// Whether the chat is missing and not only its counter, and the watermark is still there.
async fn is_of_no_chat(context: &Context, state: &DeliveryState) -> Result<bool> {
    let again = strongly(delivery_state::lookup(&state.user_id, &state.chat_id));
    let gets = vec![strongly(chats::lookup(&state.chat_id)), again];
    let found = context.reads.get_all(gets).await?;
    Ok(found[0].is_none() && found[1].is_some())
}
