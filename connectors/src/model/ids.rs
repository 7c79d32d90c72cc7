//! The names of things. Different types, so that a chat is never looked up by a user's id.

use std::borrow::Borrow;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::store::Text;

macro_rules! ids {
    ($($(#[$doc:meta])* $id:ident;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $id(#[schemars(with = "String")] SmolStr);

        impl $id {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $id {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $id {
            fn from(id: &str) -> Self {
                Self(id.into())
            }
        }

        impl From<Text> for $id {
            fn from(id: Text) -> Self {
                Self(id)
            }
        }

        impl From<String> for $id {
            fn from(id: String) -> Self {
                Self(id.into())
            }
        }

        impl From<&$id> for crate::store::Value {
            fn from(id: &$id) -> Self {
                Self::Text(id.0.clone())
            }
        }

        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )* };
}

macro_rules! generated_ids {
    ($($id:ident $prefix:literal;)*) => { $(
        impl $id {
            /// A new one, later in order than those made before it on this machine, to the millisecond.
            pub fn generate() -> Self {
                Self(smol_str::format_smolstr!(concat!($prefix, "_{}"), ulid::Ulid::generate()))
            }
        }
    )* };
}

ids! {
    UserId;
    ChatId;
    MessageId;
    SessionId;
    EventId;
    ConnectionId;
    /// Made by the client.
    DeviceId;
    /// One edge process.
    GatewayId;
    /// One reader of a change stream among those of its group.
    WorkerId;
    /// Made by the client: the same one in the same chat means the same message.
    ClientMessageId;
}

generated_ids! {
    UserId "user";
    ChatId "chat";
    MessageId "msg";
    SessionId "sess";
    EventId "evt";
    ConnectionId "conn";
    GatewayId "gw";
    WorkerId "wrk";
}

impl UserId {
    /// What the ids of agents begin with. Those of people begin otherwise, and nobody chooses theirs: who wrote a message
    /// is known from its sender, wherever it is read.
    pub const AGENT_PREFIX: &'static str = "agent_";
    /// The same of what speaks for the service itself.
    pub const SYSTEM_PREFIX: &'static str = "system_";

    /// A program that answers, see the stage `agent`.
    pub fn is_agent(&self) -> bool {
        self.0.starts_with(Self::AGENT_PREFIX)
    }

    pub fn is_system(&self) -> bool {
        self.0.starts_with(Self::SYSTEM_PREFIX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_who_registers_is_an_agent() {
        let somebody = UserId::generate();
        assert!(!somebody.is_agent() && !somebody.is_system());
        assert!(UserId::from("agent_helper").is_agent() && UserId::from("system_notices").is_system());
    }
}
