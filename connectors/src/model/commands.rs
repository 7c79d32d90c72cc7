//! What clients ask to be changed, and what they are answered.
//!
//! The edge makes commands of frames and requests, pipelines carry them out, and the answer travels back as the receipt
//! of the record. A command holds everything its pipeline needs and no secret that it does not: passwords and tokens come
//! as hashes, and neither those nor codes are printed for debugging. Who asks was verified by the edge; what they may
//! do is decided by the stage, against the store.

mod secrets;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::tables::chat_memberships::{Membership, Role};
use super::tables::chats::{Chat, ChatType};
use super::tables::users::User;
use super::{ChatId, ClientMessageId, DeviceId, MessageId, SessionId, Timestamp, UserId};
use crate::store::Text;

/// Where sockets hand in their commands.
pub const WEBSOCKET: &str = "ws";
/// Where HTTP requests do.
pub const REST: &str = "rest";

/// Anything that changes the truth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    SendMessage(SendMessage),
    Ack(Ack),
    CreateChat(CreateChat),
    RenameChat(RenameChat),
    AddMember(AddMember),
    RemoveMember(RemoveMember),
    SetRole(SetRole),
    Register(Register),
    VerifyPhone(VerifyPhone),
    OpenSession(OpenSession),
    RotateSession(RotateSession),
    EndSessions(EndSessions),
    EditProfile(EditProfile),
}

impl Command {
    /// The fields of commands that hold secrets, or what was made of them.
    pub const SECRETS: [&'static str; 5] =
        ["password_hash", "code", "refresh_token_hash", "spent_hash", "new_hash"];

    /// As pipelines name it: `send_message`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SendMessage(_) => "send_message",
            Self::Ack(_) => "ack",
            Self::CreateChat(_) => "create_chat",
            Self::RenameChat(_) => "rename_chat",
            Self::AddMember(_) => "add_member",
            Self::RemoveMember(_) => "remove_member",
            Self::SetRole(_) => "set_role",
            Self::Register(_) => "register",
            Self::VerifyPhone(_) => "verify_phone",
            Self::OpenSession(_) => "open_session",
            Self::RotateSession(_) => "rotate_session",
            Self::EndSessions(_) => "end_sessions",
            Self::EditProfile(_) => "edit_profile",
        }
    }

    /// Every name, for those who write pipelines.
    pub const NAMES: [&'static str; 13] = [
        "send_message",
        "ack",
        "create_chat",
        "rename_chat",
        "add_member",
        "remove_member",
        "set_role",
        "register",
        "verify_phone",
        "open_session",
        "rotate_session",
        "end_sessions",
        "edit_profile",
    ];

    /// What orders commands: those about one chat, user or phone number are carried out one after the other.
    pub fn key(&self) -> &str {
        match self {
            Self::SendMessage(command) => command.chat_id.as_str(),
            // By chat and not by user: a chat's members are looked up together.
            Self::Ack(command) => command.chat_id.as_str(),
            Self::CreateChat(command) => command.chat_id.as_str(),
            Self::RenameChat(command) => command.chat_id.as_str(),
            Self::AddMember(command) => command.chat_id.as_str(),
            Self::RemoveMember(command) => command.chat_id.as_str(),
            Self::SetRole(command) => command.chat_id.as_str(),
            Self::Register(command) => &command.phone_number,
            Self::VerifyPhone(command) => &command.phone_number,
            Self::OpenSession(command) => command.user_id.as_str(),
            Self::RotateSession(command) => command.session_id.as_str(),
            Self::EndSessions(command) => command.user_id.as_str(),
            Self::EditProfile(command) => command.user_id.as_str(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendMessage {
    pub chat_id: ChatId,
    pub sender_id: UserId,
    pub client_message_id: ClientMessageId,
    pub content: Text,
    pub content_type: Text,
}

/// Everything up to this sequence has arrived at a client of the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    pub chat_id: ChatId,
    pub user_id: UserId,
    pub sequence: u64,
    /// Left out by processes that knew of no other than the first.
    #[serde(default)]
    pub beyond: Beyond,
}

/// What becomes of an ack of more than its chat has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Beyond {
    /// Whoever asked is told.
    #[default]
    Refused,
    /// It stands for all that the chat has. For one that was made of several, whose sender is told nothing: a wrong one
    /// among them must not undo the others.
    AllThereIs,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateChat {
    /// New; made by the edge, so that carrying the command out twice makes one chat.
    pub chat_id: ChatId,
    pub chat_type: ChatType,
    pub name: Option<String>,
    pub created_by: UserId,
    /// Without whoever makes the chat, each once.
    pub members: Vec<UserId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenameChat {
    pub chat_id: ChatId,
    pub by: UserId,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddMember {
    pub chat_id: ChatId,
    pub by: UserId,
    pub user_id: UserId,
    pub role: Role,
}

/// Also how somebody leaves: by and for themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveMember {
    pub chat_id: ChatId,
    pub by: UserId,
    pub user_id: UserId,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetRole {
    pub chat_id: ChatId,
    pub by: UserId,
    pub user_id: UserId,
    pub role: Role,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// New; made by the edge.
    pub user_id: UserId,
    pub phone_number: String,
    pub display_name: String,
    /// Argon2id, in PHC form.
    pub password_hash: String,
    /// What goes to the phone. In the clear, since the notifier has to send it; it is good for one use and a few
    /// minutes.
    pub code: String,
    pub code_expires_at: Timestamp,
    /// Left out by processes that knew of no other than the first.
    #[serde(default)]
    pub in_use_from: InUseFrom,
}

/// From when on an account is in use, and nobody else may register its number anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InUseFrom {
    /// Nobody signs in before: until then whoever mistyped the number would keep its owner out.
    #[default]
    Verification,
    /// People sign in without having proved anything, so that the account has an owner from its first moment.
    Registration,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyPhone {
    pub phone_number: String,
    pub code: String,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSession {
    /// New; made by the edge, which has verified the password.
    pub session_id: SessionId,
    pub user_id: UserId,
    pub device_id: DeviceId,
    pub device_name: Option<String>,
    pub refresh_token_hash: String,
    pub expires_at: Timestamp,
}

/// A refresh token is spent for a new one. One that was spent before ends the session.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotateSession {
    pub session_id: SessionId,
    pub spent_hash: String,
    pub new_hash: String,
    pub expires_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndSessions {
    pub user_id: UserId,
    /// All of the user's if none is named.
    pub session_id: Option<SessionId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditProfile {
    pub user_id: UserId,
    pub display_name: String,
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Done, and there is nothing to tell.
    Done,
    Sent(Sent),
    Chat(ChatAnswer),
    Member(Member),
    User(Profile),
    Session(SessionAnswer),
    Refused(Refusal),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Sent {
    pub message_id: MessageId,
    pub chat_id: ChatId,
    pub sequence: u64,
    pub created_at: Timestamp,
    /// It was sent before; this is the answer of then.
    pub deduplicated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ChatAnswer {
    pub chat_id: ChatId,
    pub chat_type: ChatType,
    pub name: Option<String>,
    pub created_by: UserId,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Of a new chat only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
}

impl ChatAnswer {
    pub fn new(chat: Chat, members: Vec<Member>) -> Self {
        Self {
            chat_id: chat.chat_id,
            chat_type: chat.chat_type,
            name: chat.name,
            created_by: chat.created_by,
            created_at: chat.created_at,
            updated_at: chat.updated_at,
            members,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Member {
    pub user_id: UserId,
    pub role: Role,
    pub joined_at: Timestamp,
}

impl From<Membership> for Member {
    fn from(membership: Membership) -> Self {
        Self { user_id: membership.user_id, role: membership.role, joined_at: membership.joined_at }
    }
}

/// A user as they see themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Profile {
    pub user_id: UserId,
    pub phone_number: String,
    pub phone_verified: bool,
    pub display_name: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl From<User> for Profile {
    fn from(user: User) -> Self {
        Self {
            user_id: user.user_id,
            phone_number: user.phone_number,
            phone_verified: user.phone_verified,
            display_name: user.display_name,
            created_at: user.created_at,
            updated_at: user.updated_at,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionAnswer {
    pub session_id: SessionId,
    pub user_id: UserId,
    pub device_id: DeviceId,
}

/// Why a command was not carried out, in the words of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub code: Code,
    /// For the client's developer; names the thing.
    pub message: String,
    /// When to try again, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl Refusal {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after_ms: None }
    }

    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        self
    }
}

/// The error codes of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    BadRequest,
    BadFrame,
    Unauthenticated,
    Forbidden,
    NotAMember,
    NotFound,
    Conflict,
    IdempotencyMismatch,
    TooLarge,
    RateLimited,
    CounterMissing,
    Unavailable,
    Timeout,
}

impl Code {
    pub const ALL: [Self; 13] = [
        Self::BadRequest,
        Self::BadFrame,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotAMember,
        Self::NotFound,
        Self::Conflict,
        Self::IdempotencyMismatch,
        Self::TooLarge,
        Self::RateLimited,
        Self::CounterMissing,
        Self::Unavailable,
        Self::Timeout,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "BAD_REQUEST",
            Self::BadFrame => "BAD_FRAME",
            Self::Unauthenticated => "UNAUTHENTICATED",
            Self::Forbidden => "FORBIDDEN",
            Self::NotAMember => "NOT_A_MEMBER",
            Self::NotFound => "NOT_FOUND",
            Self::Conflict => "CONFLICT",
            Self::IdempotencyMismatch => "IDEMPOTENCY_MISMATCH",
            Self::TooLarge => "TOO_LARGE",
            Self::RateLimited => "RATE_LIMITED",
            Self::CounterMissing => "COUNTER_MISSING",
            Self::Unavailable => "UNAVAILABLE",
            Self::Timeout => "TIMEOUT",
        }
    }

    /// Whether the same request may succeed later.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::RateLimited | Self::Unavailable | Self::Timeout)
    }

    /// The reason under which refused commands are counted: a metric label.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::BadRequest => "bad-request",
            Self::BadFrame => "bad-frame",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::NotAMember => "not-a-member",
            Self::NotFound => "not-found",
            Self::Conflict => "conflict",
            Self::IdempotencyMismatch => "idempotency-mismatch",
            Self::TooLarge => "too-large",
            Self::RateLimited => "rate-limited",
            Self::CounterMissing => "counter-missing",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
        }
    }
}

/// The header of a record and an event with the connection a message came from, which does not get it back.
pub const ORIGIN: &str = "origin";
/// The header of an event with the sequence of the message before it in its chat, where that is not one less than its
/// own: the sequences between were given up.
pub const PREVIOUS_SEQUENCE: &str = "previous_sequence";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_json_with_its_name() {
        let command = Command::SendMessage(SendMessage {
            chat_id: "chat_1".into(),
            sender_id: "user_1".into(),
            client_message_id: "c-1".into(),
            content: "hello".into(),
            content_type: "text/plain".into(),
        });
        let json = serde_json::to_value(&command).unwrap();
        assert_eq!(
            (json["command"].as_str(), json["content"].as_str()),
            (Some("send_message"), Some("hello"))
        );
        assert_eq!(serde_json::from_value::<Command>(json).unwrap(), command);
        assert_eq!(command.name(), "send_message");
        assert!(Command::NAMES.contains(&command.name()));
    }

    #[test]
    fn codes_are_written_as_they_are_named() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
