//! Refresh tokens: `<session id>.<43 characters>`, 256 random bits. The session they belong to is no secret; the rest
//! leaves the edge as a hash only, to the client once and to nobody else.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use courant_connectors::model::SessionId;
use rand::RngExt as _;
use sha2::{Digest as _, Sha256};

/// 32 bytes in base64.
const SECRET_CHARACTERS: usize = 43;
/// Session ids have 31 characters.
const LONGEST_SESSION_ID: usize = 64;

pub(crate) struct RefreshToken {
    pub(crate) session_id: SessionId,
    secret: String,
}

impl RefreshToken {
    /// Good once the store knows its hash.
    pub(crate) fn generate(session_id: SessionId) -> Self {
        let secret: [u8; 32] = rand::rng().random();
        Self { session_id, secret: BASE64_URL_SAFE_NO_PAD.encode(secret) }
    }

    /// What the client was given, if it looks like one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (session_id, secret) = text.split_once('.')?;
        let is_id = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let fits = !session_id.is_empty()
            && session_id.len() <= LONGEST_SESSION_ID
            && is_id(session_id)
            && secret.len() == SECRET_CHARACTERS
            && secret.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        fits.then(|| Self { session_id: session_id.into(), secret: secret.to_owned() })
    }

    /// For the client.
    pub(crate) fn reveal(&self) -> String {
        format!("{}.{}", self.session_id, self.secret)
    }

    /// For everybody else: SHA-256, in hexadecimal digits. No salt and no slow hash: there is nothing to guess in 256
    /// random bits.
    pub(crate) fn hash(&self) -> String {
        Sha256::digest(&self.secret).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_only_its_hash_is_told() {
        let token = RefreshToken::generate(SessionId::generate());
        let read = RefreshToken::parse(&token.reveal()).unwrap();
        assert_eq!((&read.session_id, read.hash()), (&token.session_id, token.hash()));
        assert_eq!(token.hash().len(), 64);
        assert!(!token.hash().contains(&token.secret));
        let other = RefreshToken::generate(token.session_id.clone());
        assert_ne!(other.hash(), token.hash());
    }

    #[test]
    fn what_does_not_look_like_one_is_none() {
        let secret = "A".repeat(SECRET_CHARACTERS);
        assert!(RefreshToken::parse(&format!("sess_1.{secret}")).is_some());
        for text in [
            String::new(),
            secret.clone(),
            format!(".{secret}"),
            format!("sess_1.{secret}A"),
            format!("sess_1.{}", &secret[1..]),
            format!("sess_1.{}é", &secret[2..]),
            format!("sess/1.{secret}"),
            format!("{}.{secret}", "s".repeat(2000)),
        ] {
            assert!(RefreshToken::parse(&text).is_none(), "{text}");
        }
    }
}
