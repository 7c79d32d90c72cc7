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

/// Every family of the product.
pub static FAMILIES: [Family; 9] = [
    keys("connection", "connection:*", "one connection: user, device, gateway, since when"),
    keys("user_connections", "user_connections:*", "a user's connections"),
    keys("gateway_connections", "gateway_connections:*", "the connections on a gateway"),
    keys("chat_members", "chat_members:*", "who is in a chat, as the store said lately"),
    keys("user_presence", "user_presence:*", "whether a user is there"),
    keys("rate", "rate:*", "counts within a window of time, for limits"),
    channels("deliver", "gateway:*:deliver", "deliveries for the sockets of one gateway"),
    channels("revoked", "sessions:revoked", "sessions that have ended, for every gateway"),
    channels("invalidated", "members:invalidated", "chats whose members changed, for every process"),
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
}
