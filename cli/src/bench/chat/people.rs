//! Who talks to whom: users who sign up over REST, and the chats they are in.

use courant_client::{Client, SignedIn};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::json;

/// Sign-ups at a time: each costs the server a slow password hash, of which it does a few at once.
const AT_ONCE: usize = 8;

#[derive(Debug, Clone, Copy)]
pub(in crate::bench) struct Shape {
    pub(in crate::bench) chats: usize,
    pub(in crate::bench) members: usize,
}

impl Shape {
    pub(in crate::bench) fn check(self) -> anyhow::Result<()> {
        let is_possible = (2..=1000).contains(&self.members) && self.chats > 0;
        anyhow::ensure!(is_possible, "there must be a chat or more, each of 2 to 1000 members");
        Ok(())
    }
}

pub(in crate::bench) struct Chat {
    pub(super) id: String,
    /// Positions among the people; the first one sends.
    pub(super) members: Vec<usize>,
}

pub(super) async fn sign_up(client: &Client, count: usize) -> anyhow::Result<Vec<SignedIn>> {
    // Numbers that no earlier run on the same server has used.
    let run = ulid::Ulid::generate().random() % 100_000;
    let people = stream::iter(0..count).map(|index| async move {
        client.sign_up(&format!("+99{run:05}{index:06}"), &format!("person {index}")).await
    });
    Ok(people.buffered(AT_ONCE).try_collect().await?)
}

/// How many people a shape takes: as many as the chats have members, up to a limit beyond which people are in several.
pub(super) fn people(shape: Shape) -> usize {
    (shape.chats * shape.members).min(250).max(shape.members)
}

/// Chats whose members are spread over the people; nobody sends in more chats than they must.
pub(super) async fn chats(people: &[SignedIn], shape: Shape) -> anyhow::Result<Vec<Chat>> {
    let made = stream::iter(0..shape.chats).map(|chat| async move {
        let members: Vec<usize> =
            (0..shape.members).map(|n| (chat * shape.members + n) % people.len()).collect();
        let others: Vec<&str> = members[1..].iter().map(|&at| people[at].user_id.as_str()).collect();
        let wanted = json!({"chat_type": "group", "name": format!("chat {chat}"), "members": others});
        let made = people[members[0]].client.post("/api/v1/chats", &wanted).await?;
        let id = made["chat_id"].as_str().unwrap_or_default().to_owned();
        anyhow::Ok(Chat { id, members })
    });
    made.buffered(AT_ONCE).try_collect().await
}
