//! Live state behind a grant.
//!
//! Which families a question touches is said here, once for every method; [`policy::redis_acl`](super::policy::redis_acl)
//! makes a server's rules of the same grant. A check compares names and makes nothing, so that whoever delivers can
//! afford one for every batch.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::grant::{Access, Grant};
use crate::live::{
    Channel, Connection, Connections, Count, Counters, FillToken, Listener, Live, LiveError, MembershipCache,
    Presence, PresenceBoard, Publish, Result, Subscribe,
};
use crate::model::families::{
    CHAT_MEMBERS, CONNECTION, GATEWAY_CONNECTIONS, RATE, USER_CONNECTIONS, USER_PRESENCE, channel_family,
};
use crate::model::{ChatId, ConnectionId, GatewayId, UserId};

/// Where a connection is written down.
const REGISTRY: &[&str] = &[CONNECTION, USER_CONNECTIONS, GATEWAY_CONNECTIONS];

/// The same live state, which refuses what is not granted before anything is sent. Clones share it.
#[derive(Clone)]
pub struct RestrictedLive {
    live: Arc<dyn Live>,
    grant: Arc<Grant>,
}

impl RestrictedLive {
    pub fn new(live: Arc<dyn Live>, grant: Arc<Grant>) -> Self {
        Self { live, grant }
    }

    fn check(&self, families: &[&'static str], access: Access) -> Result<()> {
        match families.iter().find(|family| !self.grant.allows_family(family, access)) {
            None => Ok(()),
            Some(family) => Err(refusal(access.verb(), family)),
        }
    }

    /// A channel of no family is nobody's to use.
    fn check_channel(&self, channel: &Channel, access: Access) -> Result<()> {
        let family = channel_family(channel.as_str()).map(|family| family.name);
        if family.is_some_and(|family| self.grant.allows_family(family, access)) {
            return Ok(());
        }
        let verb = if access == Access::Write { "publish to" } else { "listen to" };
        Err(refusal(verb, family.unwrap_or(channel.as_str())))
    }
}

fn refusal(access: &'static str, name: &str) -> LiveError {
    LiveError::NotAllowed { access, name: name.into() }
}

#[async_trait]
impl Connections for RestrictedLive {
    async fn register(&self, connection: &Connection) -> Result<()> {
        self.check(REGISTRY, Access::Write)?;
        self.live.register(connection).await
    }

    async fn heartbeat(&self, connections: &[Connection]) -> Result<Vec<ConnectionId>> {
        self.check(REGISTRY, Access::Write)?;
        self.live.heartbeat(connections).await
    }

    async fn unregister(&self, connections: &[Connection]) -> Result<()> {
        self.check(REGISTRY, Access::Write)?;
        self.live.unregister(connections).await
    }

    async fn connections_of(&self, users: &[UserId]) -> Result<Vec<Vec<Connection>>> {
        self.check(&[USER_CONNECTIONS, CONNECTION], Access::Read)?;
        self.live.connections_of(users).await
    }

    async fn connections_on(&self, gateway: &GatewayId) -> Result<Vec<ConnectionId>> {
        self.check(&[GATEWAY_CONNECTIONS, CONNECTION], Access::Read)?;
        self.live.connections_on(gateway).await
    }
}

#[async_trait]
impl MembershipCache for RestrictedLive {
    async fn members(&self, chats: &[ChatId]) -> Result<Vec<Option<Vec<UserId>>>> {
        self.check(&[CHAT_MEMBERS], Access::Read)?;
        self.live.members(chats).await
    }

    async fn begin_fill(&self, chat: &ChatId) -> Result<FillToken> {
        self.check(&[CHAT_MEMBERS], Access::Write)?;
        self.live.begin_fill(chat).await
    }

    async fn fill(&self, token: FillToken, members: &[UserId]) -> Result<bool> {
        self.check(&[CHAT_MEMBERS], Access::Write)?;
        self.live.fill(token, members).await
    }

    async fn invalidate(&self, chats: &[ChatId]) -> Result<()> {
        self.check(&[CHAT_MEMBERS], Access::Write)?;
        self.live.invalidate(chats).await
    }
}

#[async_trait]
impl PresenceBoard for RestrictedLive {
    async fn set_presence(&self, user: &UserId, presence: Presence) -> Result<()> {
        self.check(&[USER_PRESENCE], Access::Write)?;
        self.live.set_presence(user, presence).await
    }

    async fn presence_of(&self, users: &[UserId]) -> Result<Vec<Option<Presence>>> {
        self.check(&[USER_PRESENCE], Access::Read)?;
        self.live.presence_of(users).await
    }
}

#[async_trait]
impl Counters for RestrictedLive {
    async fn count(&self, counter: &str, by: u32, window: Duration) -> Result<Count> {
        self.check(&[RATE], Access::Write)?;
        self.live.count(counter, by, window).await
    }
}

#[async_trait]
impl Publish for RestrictedLive {
    async fn publish(&self, messages: &[(Channel, Bytes)]) -> Result<Vec<u64>> {
        messages.iter().try_for_each(|(channel, _)| self.check_channel(channel, Access::Write))?;
        self.live.publish(messages).await
    }
}

#[async_trait]
impl Subscribe for RestrictedLive {
    async fn subscribe(&self, channels: &[Channel]) -> Result<Box<dyn Listener>> {
        channels.iter().try_for_each(|channel| self.check_channel(channel, Access::Read))?;
        self.live.subscribe(channels).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::embedded::MemoryLive;
    use crate::live::Status;
    use crate::model::families::FAMILIES;

    fn connection() -> Connection {
        Connection {
            id: "conn_1".into(),
            user: "user_1".into(),
            device: "device_1".into(),
            gateway: "gw_1".into(),
            connected_at: SystemTime::UNIX_EPOCH,
        }
    }

    /// Everything live state can be asked, beside the accesses it takes.
    async fn ask_everything(live: &dyn Live) -> Vec<(Vec<(&'static str, Access)>, Result<()>)> {
        let (chat, user, gateway) = (ChatId::from("chat_1"), UserId::from("user_1"), GatewayId::from("gw_1"));
        let presence = Presence { status: Status::Online, last_seen: String::new() };
        let token = || FillToken { chat: chat.clone(), token: "1".into() };
        let reads =
            |families: &[&'static str]| families.iter().map(|family| (*family, Access::Read)).collect();
        let writes =
            |families: &[&'static str]| families.iter().map(|family| (*family, Access::Write)).collect();
        let registry = || writes(&["connection", "user_connections", "gateway_connections"]);
        let mut answers = vec![
            (registry(), live.register(&connection()).await),
            (registry(), live.heartbeat(&[connection()]).await.map(drop)),
            (registry(), live.unregister(&[connection()]).await),
            (
                reads(&["connection", "user_connections"]),
                live.connections_of(std::slice::from_ref(&user)).await.map(drop),
            ),
            (reads(&["connection", "gateway_connections"]), live.connections_on(&gateway).await.map(drop)),
            (reads(&["chat_members"]), live.members(std::slice::from_ref(&chat)).await.map(drop)),
            (writes(&["chat_members"]), live.begin_fill(&chat).await.map(drop)),
            (writes(&["chat_members"]), live.fill(token(), &[]).await.map(drop)),
            (writes(&["chat_members"]), live.invalidate(std::slice::from_ref(&chat)).await),
            (writes(&["user_presence"]), live.set_presence(&user, presence).await),
            (reads(&["user_presence"]), live.presence_of(&[user]).await.map(drop)),
            (writes(&["rate"]), live.count("logins", 1, Duration::from_secs(1)).await.map(drop)),
        ];
        for (family, channel) in [
            ("deliver", Channel::deliver(&gateway)),
            ("revoked", Channel::revoked_sessions()),
            ("invalidated", Channel::invalidated_members()),
        ] {
            answers.push((reads(&[family]), live.subscribe(std::slice::from_ref(&channel)).await.map(drop)));
            answers.push((writes(&[family]), live.publish(&[(channel, Bytes::new())]).await.map(drop)));
        }
        answers
    }

    fn handle(granted: &[(&'static str, Access)]) -> RestrictedLive {
        let grant =
            granted.iter().fold(Grant::nothing(), |grant, (name, access)| grant.family(*name, *access));
        RestrictedLive::new(Arc::new(MemoryLive::new()), Arc::new(grant))
    }

    #[tokio::test]
    async fn what_a_question_takes_is_enough_and_nothing_of_it_can_be_missing() {
        let everything = ask_everything(&handle(&[])).await;
        for (index, (takes, refused)) in everything.into_iter().enumerate() {
            assert!(matches!(refused, Err(LiveError::NotAllowed { .. })), "question {index}: {refused:?}");
            let (_, answer) = ask_everything(&handle(&takes)).await.swap_remove(index);
            assert!(answer.is_ok(), "question {index}: {answer:?}");
            for missing in &takes {
                let rest: Vec<_> = takes.iter().filter(|one| *one != missing).copied().collect();
                let (_, answer) = ask_everything(&handle(&rest)).await.swap_remove(index);
                match answer {
                    Err(LiveError::NotAllowed { name, .. }) => assert_eq!(name, missing.0),
                    other => panic!("question {index} without {missing:?}: {other:?}"),
                }
            }
        }
    }

    #[tokio::test]
    async fn each_access_to_a_family_is_asked_for_somewhere() {
        let everything = ask_everything(&handle(&[])).await;
        let taken: Vec<_> = everything.into_iter().flat_map(|(takes, _)| takes).collect();
        for family in &FAMILIES {
            assert!(taken.contains(&(family.name, Access::Write)), "{}", family.name);
            // What a counter comes to is told by counting.
            let read = taken.contains(&(family.name, Access::Read));
            assert!(read || family.name == "rate", "{}", family.name);
        }
    }

    #[tokio::test]
    async fn one_channel_outside_the_grant_refuses_all_of_them() {
        let live = handle(&[("deliver", Access::Write), ("deliver", Access::Read)]);
        let inside = Channel::deliver(&"gw_1".into());
        let mut listener = live.subscribe(std::slice::from_ref(&inside)).await.unwrap();
        for (outside, name) in [
            (Channel::revoked_sessions(), "revoked"),
            (Channel::named("gateway:deliver"), "gateway:deliver"),
            (Channel::named("other"), "other"),
        ] {
            let both = [(inside.clone(), Bytes::new()), (outside.clone(), Bytes::new())];
            let error = live.publish(&both).await.unwrap_err();
            assert_eq!(error.to_string(), format!("this handle may not publish to '{name}'"));
            let error = live.subscribe(&[inside.clone(), outside]).await.map(drop).unwrap_err();
            assert_eq!(error.to_string(), format!("this handle may not listen to '{name}'"));
        }
        let heard = futures::FutureExt::now_or_never(listener.next());
        assert!(heard.is_none(), "nothing of it was sent: {heard:?}");
    }
}
