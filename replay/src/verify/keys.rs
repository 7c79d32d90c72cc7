//! Idempotency keys and the messages they name. Both are written in one transaction and neither changes, so they agree
//! at any moment at which the key is there.

use std::sync::Arc;

use courant_connectors::model::tables::idempotency_keys::{self, BodyHash, IdempotencyKey, SCHEMA};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::store::{Consistency, Item};

use super::Result;
use super::checks;
use super::context::Context;
use super::pages::each_page;
use super::report::Example;

pub(super) async fn run(context: &Arc<Context>) -> Result<()> {
    each_page(context, &SCHEMA, check_page).await
}

async fn check_page(context: Arc<Context>, items: Vec<Item>) -> Result<()> {
    context.check_ends(&SCHEMA, &items);
    let keys = context.records(&SCHEMA, &items, IdempotencyKey::from_item);
    drop(items);
    if !context.wants_any(&[&checks::KEY_MESSAGE, &checks::KEY_AGREES]) {
        return Ok(());
    }
    context.looked_at(&checks::KEY_MESSAGE, keys.len());
    context.looked_at(&checks::KEY_AGREES, keys.len());
    let lookup = |key: &IdempotencyKey| messages::lookup(&key.chat_id, key.sequence, Consistency::Strong);
    let found = context.reads.get_all(keys.iter().map(lookup).collect()).await?;
    for (key, item) in keys.iter().zip(found) {
        let example = || Example::of(&key.chat_id).at(key.sequence);
        match item.as_ref().map(Message::from_item) {
            None if is_still_there(&context, key).await? => {
                let detail = format!("key '{}' names message {}", key.client_message_id, key.message_id);
                context.found(&checks::KEY_MESSAGE, example().saying(detail));
            }
            Some(Ok(message)) => {
                let differences = differences(key, &message);
                if !differences.is_empty() {
                    let names = differences.join(", ");
                    let detail = format!("key '{}' has another {names}", key.client_message_id);
                    context.found(&checks::KEY_AGREES, example().saying(detail));
                }
            }
            // What cannot be read is told where messages are.
            None | Some(Err(_)) => {}
        }
    }
    Ok(())
}

/// A key may end while it is looked at.
async fn is_still_there(context: &Context, key: &IdempotencyKey) -> Result<bool> {
    let lookup = idempotency_keys::lookup(&key.chat_id, &key.client_message_id, Consistency::Strong);
    let item = context.reads.get(lookup).await?;
    Ok(item.is_some_and(|item| item.u64("sequence") == Some(key.sequence)))
}

fn differences(key: &IdempotencyKey, message: &Message) -> Vec<&'static str> {
    let body = BodyHash::of(&message.content_type, &message.content);
    let differences = [
        ("message_id", key.message_id != message.message_id),
        ("client_message_id", key.client_message_id != message.client_message_id),
        ("sender_id", key.sender_id != message.sender_id),
        ("body_hash", key.body_hash != body),
    ];
    differences.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}
