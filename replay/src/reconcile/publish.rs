//! Publishing what is missing: in order within a chat, some hundred at a time whatever chats they are of.
//!
//! A message is read again, strongly, right before: one that is gone is not published. The log may refuse some of a
//! call; those are given to it again, so that a chat's events stay in order.

use std::sync::Arc;

use courant_connectors::log::{NewRecord, Topic, WriteLog};
use courant_connectors::model::ChatId;
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::topics::{MessagePersisted, messages_persisted};
use courant_connectors::store::{Consistency, Remedy};

use super::report::Published;
use crate::verify::context::Context;
use crate::verify::reads::{FIRST_PAUSE, TRIES};
use crate::verify::{Result, VerifyError};

/// Read and appended together: as many gets as go in one call, and at most some 2 MB of messages.
const TOGETHER: usize = 400;

pub(super) async fn missing_events(
    context: &Context,
    log: &Arc<dyn WriteLog>,
    published: &mut Published,
) -> Result<()> {
    context.begin_next("publishing");
    let missing = context.missing.take();
    context.expect(missing.iter().map(|(_, sequences)| sequences.len()).sum());
    let mut part = Vec::with_capacity(TOGETHER);
    for (chat, sequences) in &missing {
        published.chats += 1;
        for sequence in sequences.iter() {
            part.push((chat, sequence));
            if part.len() == TOGETHER {
                publish(context, log, std::mem::take(&mut part), published).await?;
            }
        }
    }
    publish(context, log, part, published).await
}

async fn publish(
    context: &Context,
    log: &Arc<dyn WriteLog>,
    part: Vec<(&ChatId, u64)>,
    published: &mut Published,
) -> Result<()> {
    context.check_stop()?;
    let lookup = |(chat, sequence): &(&ChatId, u64)| messages::lookup(chat, *sequence, Consistency::Strong);
    let found = context.reads.get_all(part.iter().map(lookup).collect()).await?;
    let stored = found.iter().flatten().filter_map(|item| Message::from_item(item).ok());
    append(context, log, stored.map(as_event).collect(), published).await?;
    context.advance(part.len());
    Ok(())
}

fn as_event(message: Message) -> NewRecord {
    MessagePersisted::of(message).encode()
}

/// Appends everything, or says why not. What was appended is counted either way.
async fn append(
    context: &Context,
    log: &Arc<dyn WriteLog>,
    mut open: Vec<NewRecord>,
    published: &mut Published,
) -> Result<()> {
    let (topic, mut pause, mut tries) = (Topic::from(messages_persisted::NAME), FIRST_PAUSE, 1);
    while !open.is_empty() {
        let answers = log.produce(&topic, open.clone()).await;
        let (mut refused, mut reason) = (Vec::new(), None);
        for (record, answer) in open.into_iter().zip(answers) {
            match answer {
                Ok(_) => published.events += 1,
                Err(error) => {
                    refused.push(record);
                    // Of those behind it, the first tells why.
                    reason.get_or_insert(error);
                }
            }
        }
        if let Some(source) = reason {
            if source.remedy() != Remedy::Retry || tries == TRIES {
                return Err(VerifyError::Log { doing: "publish events", source });
            }
            context.pause(pause).await?;
            (pause, tries) = (pause * 2, tries + 1);
        }
        open = refused;
    }
    Ok(())
}
