//! Values that requests are made of, each with its bounds. They are checked while they are read, so that a route's
//! function never sees one that is not in order; and they say in the description what they must be.

use std::borrow::Cow;
use std::fmt;

use courant_connectors::model::commands::{Code, Refusal};
use courant_connectors::model::tables::chats::MAX_NAME;
use courant_connectors::model::tables::users::MAX_DISPLAY_NAME;
use courant_connectors::model::{ChatId, ClientMessageId, DeviceId, SessionId, UserId};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};

use crate::auth::{LONGEST_PASSWORD, SHORTEST_PASSWORD};

/// Messages are short; files are not sent as messages.
pub(crate) const LONGEST_CONTENT: usize = 4096;
const LONGEST_CLIENT_MESSAGE_ID: usize = 128;
const LONGEST_CONTENT_TYPE: usize = 128;
/// After the prefix. A ULID has 26 characters; nothing longer is looked up.
const LONGEST_ID: usize = 64;

/// Things that are called by an id.
pub(super) trait Prefixed: for<'a> From<&'a str> + Send + 'static {
    /// More than one where things of several kinds are called alike.
    const PREFIXES: &'static [&'static str];
    /// As in a sentence.
    const NAME: &'static str;
}

impl Prefixed for UserId {
    /// Agents are in chats like people.
    const PREFIXES: &'static [&'static str] = &["user_", Self::AGENT_PREFIX];
    const NAME: &'static str = "user";
}

impl Prefixed for ChatId {
    const PREFIXES: &'static [&'static str] = &["chat_"];
    const NAME: &'static str = "chat";
}

impl Prefixed for SessionId {
    const PREFIXES: &'static [&'static str] = &["sess_"];
    const NAME: &'static str = "session";
}

/// An id that looks like one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Id<T>(pub(super) T);

impl<T: Prefixed> Id<T> {
    fn parse(text: &str) -> Option<Self> {
        let rest = T::PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix))?;
        let fits =
            (1..=LONGEST_ID).contains(&rest.len()) && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
        fits.then(|| Self(text.into()))
    }
}

impl<'de, T: Prefixed> Deserialize<'de> for Id<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text: Cow<'de, str> = Deserialize::deserialize(deserializer)?;
        let wrong = || {
            let prefixes = T::PREFIXES.join(" or ");
            de::Error::custom(format_args!("the id of a {} begins with {prefixes}", T::NAME))
        };
        Self::parse(&text).ok_or_else(wrong)
    }
}

impl<T: Prefixed> JsonSchema for Id<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Id of a {}", T::NAME).into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = format!("^({})[0-9A-Za-z]{{1,{LONGEST_ID}}}$", T::PREFIXES.join("|"));
        json_schema!({ "type": "string", "pattern": pattern })
    }
}

/// What a path names.
pub(super) trait FromPath: Sized + Send + 'static {
    fn schema() -> Option<Schema>;

    fn from_path(parameter: Option<&str>) -> Result<Self, Refusal>;
}

impl FromPath for () {
    fn schema() -> Option<Schema> {
        None
    }

    fn from_path(_: Option<&str>) -> Result<Self, Refusal> {
        Ok(())
    }
}

impl<T: Prefixed> FromPath for T {
    fn schema() -> Option<Schema> {
        Some(Id::<T>::json_schema(&mut SchemaGenerator::default()))
    }

    /// Something that is no id names nothing.
    fn from_path(parameter: Option<&str>) -> Result<Self, Refusal> {
        let id = parameter.and_then(Id::parse);
        id.map(|id| id.0).ok_or_else(|| Refusal::new(Code::NotFound, format!("there is no such {}", T::NAME)))
    }
}

/// A line that people read: so many characters, not only spaces, nothing that is not printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line<const LONGEST: usize>(pub(super) String);

impl<'de, const LONGEST: usize> Deserialize<'de> for Line<LONGEST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // Counting stops where it is too long anyway.
        let length = text.chars().take(LONGEST + 1).count();
        if length > LONGEST || text.trim().is_empty() || text.chars().any(char::is_control) {
            return Err(de::Error::custom(format_args!("a name is a line of 1 to {LONGEST} characters")));
        }
        Ok(Self(text))
    }
}

impl<const LONGEST: usize> JsonSchema for Line<LONGEST> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Line of {LONGEST}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": LONGEST })
    }
}

/// What somebody, their device or a group is called.
pub(super) type Name = Line<LONGEST_NAME>;

const LONGEST_NAME: usize = 64;
// A character takes up to four bytes, and the model counts bytes.
const _: () = assert!(4 * LONGEST_NAME <= MAX_DISPLAY_NAME && 4 * LONGEST_NAME <= MAX_NAME);

/// Never printed.
#[derive(Clone, JsonSchema)]
#[schemars(inline)]
pub(super) struct Password(
    #[schemars(length(min = SHORTEST_PASSWORD, max = LONGEST_PASSWORD))] pub(super) String,
);

impl<'de> Deserialize<'de> for Password {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let length = text.chars().take(LONGEST_PASSWORD + 1).count();
        if (SHORTEST_PASSWORD..=LONGEST_PASSWORD).contains(&length) {
            return Ok(Self(text));
        }
        Err(de::Error::custom(format_args!(
            "a password has {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters"
        )))
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Made by the client, so any name does.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(inline)]
pub(super) struct Device(#[schemars(regex(pattern = r"^[0-9A-Za-z_.-]{1,64}$"))] String);

impl Device {
    pub(super) fn id(self) -> DeviceId {
        self.0.into()
    }
}

impl<'de> Deserialize<'de> for Device {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if (1..=LONGEST_ID).contains(&text.len()) && text.bytes().all(allowed) {
            return Ok(Self(text));
        }
        Err(de::Error::custom("a device's id has 1 to 64 letters, digits, '_', '.' and '-'"))
    }
}

fn refuse<T>(code: Code, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(code, reason))
}

/// What may be said, whichever way it comes in.
pub(crate) fn check_content(content: &str) -> Result<(), Refusal> {
    match content.len() {
        0 => refuse(Code::BadRequest, "content is empty"),
        1..=LONGEST_CONTENT => Ok(()),
        _ => refuse(Code::TooLarge, format!("content has at most {LONGEST_CONTENT} bytes")),
    }
}

/// The idempotency key of a message.
pub(crate) fn check_client_message_id(id: &ClientMessageId) -> Result<(), Refusal> {
    let id = id.as_str();
    let printable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    if (1..=LONGEST_CLIENT_MESSAGE_ID).contains(&id.len()) && id.bytes().all(printable) {
        return Ok(());
    }
    refuse(
        Code::BadRequest,
        format!("client_message_id has 1 to {LONGEST_CLIENT_MESSAGE_ID} printable ASCII characters"),
    )
}

/// `type/subtype`, with parameters if need be.
pub(crate) fn check_content_type(content_type: &str) -> Result<(), Refusal> {
    let essence = content_type.split(';').next().unwrap_or_default();
    let token = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte))
    };
    let printable = content_type.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    let named = essence.trim().split_once('/').is_some_and(|(kind, subtype)| token(kind) && token(subtype));
    if named && printable && content_type.len() <= LONGEST_CONTENT_TYPE {
        return Ok(());
    }
    refuse(Code::BadRequest, "content_type is a media type such as text/plain")
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn ids_look_like_ids() {
        let id = |text: &str| from_value::<Id<UserId>>(json!(text)).map(|id| id.0.to_string());
        assert_eq!(id("user_01J").unwrap(), "user_01J");
        assert_eq!(id("agent_helper").unwrap(), "agent_helper");
        for bad in ["", "user_", "chat_01J", "user_01J/..", "user_é", &format!("user_{}", "0".repeat(65))] {
            assert!(id(bad).unwrap_err().to_string().contains("begins with user_"), "{bad}");
        }
    }

    #[test]
    fn names_are_lines() {
        let line = |text: &str| from_value::<Line<5>>(json!(text)).is_ok();
        assert!(line("Ada") && line("ééééé") && line(" A "));
        for bad in ["", "   ", "éééééé", "a\nb", "a\u{0}"] {
            assert!(!line(bad), "{bad:?}");
        }
    }

    #[test]
    fn passwords_are_counted_in_characters_and_not_shown() {
        let password = |text: String| from_value::<Password>(json!(text));
        assert!(password("é".repeat(128)).is_ok());
        assert!(password("1234567".to_owned()).is_err());
        let error = password("hunter2".to_owned()).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
        assert_eq!(format!("{:?}", password("hunter22".to_owned()).unwrap()), "***");
        assert!(password("x".repeat(129)).is_err());
    }

    #[test]
    fn messages_are_checked_wherever_they_come_in() {
        let code = |checked: Result<(), Refusal>| checked.err().map(|refusal| refusal.code);
        assert_eq!(code(check_content("é")), None);
        assert_eq!(code(check_content("")), Some(Code::BadRequest));
        assert_eq!(code(check_content(&"é".repeat(2049))), Some(Code::TooLarge));
        assert_eq!(code(check_content(&"é".repeat(2048))), None);
        let key = |text: &str| code(check_client_message_id(&text.into()));
        assert_eq!(key("c 1!"), None);
        for bad in ["", "é", "a\tb", &"x".repeat(129)] {
            assert_eq!(key(bad), Some(Code::BadRequest), "{bad}");
        }
        let kind = |text: &str| code(check_content_type(text));
        assert_eq!(kind("text/plain; charset=utf-8"), None);
        assert_eq!(kind("application/vnd.x+json"), None);
        for bad in ["", "text", "/plain", "text/", "text/pl ain", "text/plain;\u{1}", &"x/".repeat(65)] {
            assert_eq!(kind(bad), Some(Code::BadRequest), "{bad}");
        }
    }
}
