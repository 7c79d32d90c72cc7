//! Phone numbers, and the codes that prove that somebody has one.

use std::borrow::Cow;
use std::time::Duration;

use rand::RngExt as _;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

/// How long a code is good: the time to find the phone, not the time to try a million of them.
pub(crate) const CODE_LIFETIME: Duration = Duration::from_secs(10 * 60);

/// A number in E.164: a plus, the country's code, at most fifteen digits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct PhoneNumber(String);

impl PhoneNumber {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

impl TryFrom<String> for PhoneNumber {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let digits = text.strip_prefix('+').unwrap_or_default();
        let fits = (7..=15).contains(&digits.len())
            && digits.bytes().all(|byte| byte.is_ascii_digit())
            && !digits.starts_with('0');
        if fits { Ok(Self(text)) } else { Err("a phone number is written in E.164, like +41791234567") }
    }
}

impl JsonSchema for PhoneNumber {
    fn schema_name() -> Cow<'static, str> {
        "PhoneNumber".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "E.164",
            "pattern": r"^\+[1-9][0-9]{6,14}$",
            "examples": ["+41791234567"],
        })
    }
}

/// Six digits, sent to a phone.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct VerificationCode(String);

impl VerificationCode {
    /// Every code is as likely as any other.
    pub(crate) fn generate() -> Self {
        Self(format!("{:06}", rand::rng().random_range(0..1_000_000_u32)))
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

impl TryFrom<String> for VerificationCode {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let fits = text.len() == 6 && text.bytes().all(|byte| byte.is_ascii_digit());
        if fits { Ok(Self(text)) } else { Err("a code has six digits") }
    }
}

impl JsonSchema for VerificationCode {
    fn schema_name() -> Cow<'static, str> {
        "VerificationCode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "as sent to the phone", "pattern": "^[0-9]{6}$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_e164() {
        for good in ["+41791234567", "+1234567", "+123456789012345"] {
            assert_eq!(PhoneNumber::try_from(good.to_owned()).unwrap().as_str(), good);
        }
        for bad in [
            "",
            "+",
            "41791234567",
            "+041791234567",
            "+41 79 123",
            "+123456",
            "+1234567890123456",
            "+4179123456٣",
        ] {
            assert!(PhoneNumber::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn codes_have_six_digits_and_differ() {
        let codes: std::collections::HashSet<_> =
            (0..100).map(|_| VerificationCode::generate().into_string()).collect();
        assert!(codes.len() > 90, "{codes:?}");
        assert!(codes.iter().all(|code| VerificationCode::try_from(code.clone()).is_ok()));
        for bad in ["12345", "1234567", "12345a", "      "] {
            assert!(VerificationCode::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
