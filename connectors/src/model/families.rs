//! The key families of live state: what each is called and what its keys hold. Grants name them, and a server's access
//! rules are made of the patterns. The keys themselves are built by the connector.

/// Keys of one shape, or channels of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// As grants and declarations of stages name it.
    pub name: &'static str,
    /// With `*` where a key has an id; what an access rule says.
    pub pattern: &'static str,
    pub kind: FamilyKind,
    pub holds: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyKind {
    Keys,
    /// Nothing is stored: who does not listen at the moment does not hear.
    Channels,
}

pub const CONNECTION: &str = "connection";
pub const USER_CONNECTIONS: &str = "user_connections";
pub const GATEWAY_CONNECTIONS: &str = "gateway_connections";
pub const CHAT_MEMBERS: &str = "chat_members";
pub const USER_PRESENCE: &str = "user_presence";
pub const RATE: &str = "rate";
pub const DELIVER: &str = "deliver";
pub const REVOKED: &str = "revoked";
pub const INVALIDATED: &str = "invalidated";

/// Every family of the product.
pub static FAMILIES: [Family; 9] = [
    keys(CONNECTION, "connection:*", "one connection: user, device, gateway, since when"),
    keys(USER_CONNECTIONS, "user_connections:*", "a user's connections"),
    keys(GATEWAY_CONNECTIONS, "gateway_connections:*", "the connections on a gateway"),
    keys(CHAT_MEMBERS, "chat_members:*", "who is in a chat, as the store said lately"),
    keys(USER_PRESENCE, "user_presence:*", "whether a user is there"),
    keys(RATE, "rate:*", "counts within a window of time, for limits"),
    channels(DELIVER, "gateway:*:deliver", "deliveries for the sockets of one gateway"),
    channels(REVOKED, "sessions:revoked", "sessions that have ended, for every gateway"),
    channels(INVALIDATED, "members:invalidated", "chats whose members changed, for every process"),
];

const fn channels(name: &'static str, pattern: &'static str, holds: &'static str) -> Family {
    Family { name, pattern, kind: FamilyKind::Channels, holds }
}

const fn keys(name: &'static str, pattern: &'static str, holds: &'static str) -> Family {
    Family { name, pattern, kind: FamilyKind::Keys, holds }
}

pub fn family(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// The family of a channel, by its name on the server.
pub fn channel_family(channel: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.kind == FamilyKind::Channels && family.matches(channel))
}

impl Family {
    /// Whether a server counts a key or channel to the family.
    fn matches(&self, name: &str) -> bool {
        match self.pattern.split_once('*') {
            None => name == self.pattern,
            Some((before, after)) => {
                name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Channel;

    #[test]
    fn names_and_patterns_agree() {
        for known in &FAMILIES {
            assert_eq!(family(known.name), Some(known), "each name is there once");
            match known.kind {
                FamilyKind::Keys => assert_eq!(known.pattern, format!("{}:*", known.name)),
                FamilyKind::Channels => assert!(known.pattern.ends_with(&format!(":{}", known.name))),
            }
        }
        assert_eq!(family("chat"), None);
        let channel = Channel::deliver(&"gw_1".into());
        assert_eq!(family("deliver").unwrap().pattern.replace('*', "gw_1"), channel.as_str());
    }

    #[test]
    fn a_channel_is_known_by_its_pattern() {
        let name = |channel: &Channel| channel_family(channel.as_str()).map(|family| family.name);
        assert_eq!(name(&Channel::deliver(&"a:b".into())), Some("deliver"));
        assert_eq!(name(&Channel::revoked_sessions()), Some("revoked"));
        assert_eq!(name(&Channel::invalidated_members()), Some("invalidated"));
        for other in ["gateway:deliver", "gateway:x:deliver:y", "sessions:revoked:x", "connection:x", ""] {
            assert_eq!(name(&Channel::named(other)), None, "{other}");
        }
    }
}
