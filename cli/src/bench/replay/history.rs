//! Messages, in the store and in the log.

use anyhow::Context as _;
use courant_connectors::connections::Connected;
use courant_connectors::model::Timestamp;
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::topics::{MessagePersisted, messages_persisted};
use courant_connectors::store::{BatchWrite, Stream, TableSchema};
use courant_pipeline::clock;
use futures::future::try_join_all;
use ulid::Ulid;

/// Of text, without ids and names.
const TEXT_BYTES: usize = 200;
/// Different texts; far more than fit into a block of anything.
const TEXTS: u64 = 16_384;
/// Words that people use; the first ones far more often than the last.
const WORDS: u64 = 20_000;
const MESSAGES_PER_CHAT: u64 = 200;
const MOST_CHATS: u64 = 50_000;
/// Messages that are written at a time.
const PART: u64 = 2_000;
/// As many as the store takes in one call.
const CALL: usize = 25;
/// How old the newest is: old enough to be compared.
const AGE_MILLIS: u64 = 3_600_000;

/// What was written.
pub(super) struct History {
    pub(super) messages: u64,
    chats: u64,
    texts: Vec<String>,
    first_at: u64,
}

impl History {
    /// Writes so many messages, as a deployment would have.
    pub(super) async fn fill(to: &Connected, messages: u64) -> anyhow::Result<Self> {
        let history = Self {
            messages,
            chats: (messages / MESSAGES_PER_CHAT).clamp(1, MOST_CHATS),
            texts: texts(),
            first_at: clock::unix_millis().saturating_sub(AGE_MILLIS + messages),
        };
        // Scans do not read the change stream, and it would take as much of the disk again.
        to.store.drop_table(&messages::SCHEMA.name).await?;
        to.store.create_table(&TableSchema { stream: Stream::Off, ..messages::SCHEMA.clone() }).await?;
        for first in (0..messages).step_by(usize::try_from(PART)?) {
            let part: Vec<_> =
                (first..messages.min(first + PART)).map(|number| history.message(number)).collect();
            history.write(to, part).await?;
        }
        Ok(history)
    }

    async fn write(&self, to: &Connected, part: Vec<Message>) -> anyhow::Result<()> {
        let put = |message: &Message| BatchWrite::Put {
            table: messages::SCHEMA.name.clone(),
            item: message.to_item(),
        };
        let calls = part.chunks(CALL).map(|call| to.store.batch_write(call.iter().map(put).collect()));
        try_join_all(calls).await?;
        let events = part.into_iter().map(|message| MessagePersisted::of(message).encode()).collect();
        for appended in to.log.produce(&messages_persisted::NAME.into(), events).await {
            appended.context("cannot fill the log")?;
        }
        Ok(())
    }

    /// The chats in turns.
    pub(super) fn message(&self, number: u64) -> Message {
        let (chat, at) = (number % self.chats, self.first_at + number);
        let ulid = |random: u64| Ulid::from_parts(at, u128::from(mixed(random)));
        Message {
            chat_id: format!("chat_{}", Ulid::from_parts(self.first_at, u128::from(mixed(chat)))).into(),
            sequence: number / self.chats + 1,
            message_id: format!("msg_{}", ulid(number)).into(),
            sender_id: format!("user_{}", Ulid::from_parts(self.first_at, u128::from(mixed(chat + 7))))
                .into(),
            client_message_id: ulid(!number).to_string().into(),
            content: self.texts[usize::try_from(mixed(number) % TEXTS).unwrap_or(0)].as_str().into(),
            content_type: "text/plain".into(),
            created_at: Timestamp::from_unix_millis(at),
        }
    }
}

fn texts() -> Vec<String> {
    let mut state = 1;
    let mut next = || {
        state = mixed(state);
        state
    };
    let mut text = || {
        let mut text = String::with_capacity(TEXT_BYTES + 16);
        while text.len() < TEXT_BYTES {
            // The least of three: a few words are in nearly every message.
            let word = (next() % WORDS).min(next() % WORDS).min(next() % WORDS);
            push_word(word, &mut text);
            text.push(' ');
        }
        text.truncate(TEXT_BYTES);
        text
    };
    (0..TEXTS).map(|_| text()).collect()
}

/// Short words are the frequent ones.
fn push_word(word: u64, text: &mut String) {
    let mut letters = mixed(word + 1);
    for _ in 0..2 + word.checked_ilog2().unwrap_or(0) / 2 {
        text.push(char::from(b'a' + u8::try_from(letters % 26).unwrap_or(0)));
        letters /= 26;
    }
}

/// Another number for each (splitmix64).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
