//! Access tokens: JWTs that say who somebody is for a quarter of an hour.
//!
//! A token is believed if one of our keys signed it, with the one algorithm there is, for our audience, and if its time
//! is not over. Whether its session was ended since, the store knows; requests ask it, sockets are told.

use std::path::Path;
use std::time::Duration;

use courant_connectors::model::commands::{Code, Refusal};
use courant_connectors::model::{DeviceId, SessionId, UserId};
use courant_pipeline::clock;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode};
use serde::{Deserialize, Serialize};

use super::config::AuthConfig;
use super::signing_keys::{self, SigningKey, SigningKeyError};
use super::{Authenticate, Caller, hs256};

/// Short, so that what a token claims is never long out of date; a refresh costs one request.
pub const ACCESS_LIFETIME: Duration = Duration::from_secs(15 * 60);
/// Ours have a third of that. Nothing longer is decoded.
const LONGEST_TOKEN: usize = 1024;

/// Makes and verifies access tokens.
pub struct Tokens {
    /// The first signs.
    keys: Vec<Key>,
    validation: Validation,
    audience: String,
    origin: KeyOrigin,
}

/// Whose the keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyOrigin {
    Configured,
    /// In the data folder of this process: no other process knows its tokens.
    Kept,
}

struct Key {
    id: String,
    signs: EncodingKey,
    verifies: DecodingKey,
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    sub: UserId,
    sid: SessionId,
    did: DeviceId,
    iat: u64,
    exp: u64,
    aud: String,
}

impl Tokens {
    /// With the configured keys, or with the one in the data folder.
    pub fn open(config: &AuthConfig, data_dir: &Path) -> Result<Self, SigningKeyError> {
        hs256::install();
        let (keys, origin) = if config.signing_keys.is_empty() {
            (vec![signing_keys::kept(data_dir)?], KeyOrigin::Kept)
        } else {
            (signing_keys::named(&config.signing_keys)?, KeyOrigin::Configured)
        };
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = 0;
        validation.set_required_spec_claims(&["exp", "aud", "sub"]);
        validation.set_audience(&[&config.audience]);
        let keys = keys.into_iter().map(Key::new).collect();
        Ok(Self { keys, validation, audience: config.audience.clone(), origin })
    }

    /// Whether only this process can verify what it signs.
    pub fn are_of_this_process_only(&self) -> bool {
        self.origin == KeyOrigin::Kept
    }

    /// A token for somebody, good for [`ACCESS_LIFETIME`] from now.
    pub fn issue(&self, caller: &Caller) -> String {
        let now = clock::unix_millis() / 1000;
        self.sign(&Claims {
            sub: caller.user_id.clone(),
            sid: caller.session_id.clone(),
            did: caller.device_id.clone(),
            iat: now,
            exp: now + ACCESS_LIFETIME.as_secs(),
            aud: self.audience.clone(),
        })
    }

    fn sign(&self, claims: &Claims) -> String {
        let key = &self.keys[0];
        let header = Header { kid: Some(key.id.clone()), ..Header::new(Algorithm::HS256) };
        encode(&header, claims, &key.signs).expect("claims are JSON, and HMAC takes any key")
    }

    fn claims(&self, token: &str) -> Result<Claims, ErrorKind> {
        if token.len() > LONGEST_TOKEN {
            return Err(ErrorKind::InvalidToken);
        }
        let header = decode_header(token).map_err(jsonwebtoken::errors::Error::into_kind)?;
        let key = self.keys.iter().find(|key| Some(&key.id) == header.kid.as_ref());
        let key = key.ok_or(ErrorKind::InvalidSignature)?;
        let decoded = decode(token, &key.verifies, &self.validation);
        decoded.map(|data| data.claims).map_err(jsonwebtoken::errors::Error::into_kind)
    }
}

impl Key {
    fn new(key: SigningKey) -> Self {
        let secret = key.secret.as_bytes();
        Self {
            signs: EncodingKey::from_secret(secret),
            verifies: DecodingKey::from_secret(secret),
            id: key.id,
        }
    }
}

impl Authenticate for Tokens {
    fn authenticate(&self, access_token: &str) -> Result<Caller, Refusal> {
        let claims = self.claims(access_token).map_err(|error| {
            // Nothing more: which check a forged token failed is nobody's business.
            Refusal::new(
                Code::Unauthenticated,
                match error {
                    ErrorKind::ExpiredSignature => "the access token has expired; refresh it",
                    _ => "the access token is not valid; sign in again",
                },
            )
        })?;
        Ok(Caller { user_id: claims.sub, session_id: claims.sid, device_id: claims.did })
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
    use serde_json::{Value, json};

    use super::*;
    use crate::auth::SigningKeyConfig;

    struct Keys(tempfile::TempDir);

    impl Keys {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            for id in ["old", "new"] {
                std::fs::write(folder.path().join(id), id.repeat(20)).unwrap();
            }
            Self(folder)
        }

        fn tokens(&self, ids: &[&str]) -> Tokens {
            let key = |id: &&str| SigningKeyConfig {
                id: (*id).to_owned(),
                secret_env: None,
                secret_file: Some(self.0.path().join(id)),
            };
            let config = AuthConfig { signing_keys: ids.iter().map(key).collect(), ..AuthConfig::default() };
            Tokens::open(&config, self.0.path()).unwrap()
        }
    }

    fn caller() -> Caller {
        Caller { user_id: "user_1".into(), session_id: "sess_1".into(), device_id: "dev_1".into() }
    }

    fn claims(aud: &str, lives: i64) -> Claims {
        let now = clock::unix_millis() / 1000;
        Claims {
            sub: "user_1".into(),
            sid: "sess_1".into(),
            did: "dev_1".into(),
            iat: now,
            exp: now.saturating_add_signed(lives),
            aud: aud.to_owned(),
        }
    }

    fn part(token: &str, at: usize) -> Value {
        let part = token.split('.').nth(at).unwrap();
        serde_json::from_slice(&BASE64.decode(part).unwrap()).unwrap()
    }

    fn refusal(tokens: &Tokens, token: &str) -> Refusal {
        tokens.authenticate(token).expect_err(token)
    }

    #[test]
    fn a_token_says_what_the_protocol_says() {
        let tokens = Keys::new().tokens(&["new"]);
        let token = tokens.issue(&caller());
        assert_eq!(tokens.authenticate(&token).unwrap(), caller());
        let (header, claims) = (part(&token, 0), part(&token, 1));
        assert_eq!((&header["alg"], &header["kid"]), (&json!("HS256"), &json!("new")));
        assert_eq!((&claims["sub"], &claims["sid"]), (&json!("user_1"), &json!("sess_1")));
        assert_eq!((&claims["did"], &claims["aud"]), (&json!("dev_1"), &json!("courant")));
        assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 900);
        assert!(token.len() < LONGEST_TOKEN / 2);
    }

    #[test]
    fn keys_are_rotated_without_signing_anybody_out() {
        let keys = Keys::new();
        let before = keys.tokens(&["old"]).issue(&caller());
        let rotating = keys.tokens(&["new", "old"]);
        assert!(rotating.authenticate(&before).is_ok());
        let after = rotating.issue(&caller());
        assert_eq!(part(&after, 0)["kid"], "new");
        let rotated = keys.tokens(&["new"]);
        assert!(rotated.authenticate(&after).is_ok());
        assert_eq!(refusal(&rotated, &before).code, Code::Unauthenticated, "its key is gone");
    }

    #[test]
    fn forged_tokens_are_refused() {
        let keys = Keys::new();
        let tokens = keys.tokens(&["new", "old"]);
        let token = tokens.issue(&caller());
        let parts: Vec<&str> = token.split('.').collect();
        let head = |header: &Value| BASE64.encode(header.to_string());
        let (header, body) = (parts[0], parts[1]);
        let admin =
            head(&json!({"sub": "user_2", "sid": "s", "did": "d", "exp": u32::MAX, "aud": "courant"}));
        let none = head(&json!({"alg": "none", "typ": "JWT", "kid": "new"}));
        let rs256 = head(&json!({"alg": "RS256", "kid": "new"}));
        let hs512 = head(&json!({"alg": "HS512", "kid": "new"}));
        let other_kid = head(&json!({"alg": "HS256", "kid": "old"}));
        let no_kid = head(&json!({"alg": "HS256"}));
        for forged in [
            format!("{none}.{body}."),
            format!("{none}.{body}.{}", parts[2]),
            format!("{rs256}.{body}.{}", parts[2]),
            format!("{hs512}.{body}.{}", parts[2]),
            format!("{other_kid}.{body}.{}", parts[2]),
            format!("{no_kid}.{body}.{}", parts[2]),
            format!("{header}.{admin}.{}", parts[2]),
            format!("{header}.{body}."),
            format!("{header}.{body}"),
            format!("{token}A"),
            String::new(),
            "...".to_owned(),
            "a".repeat(100_000),
        ] {
            assert_eq!(refusal(&tokens, &forged).code, Code::Unauthenticated, "{forged}");
        }
    }

    #[test]
    fn a_token_names_its_key() {
        let tokens = Keys::new().tokens(&["new", "old"]);
        let key = EncodingKey::from_secret("new".repeat(20).as_bytes());
        let signed = |kid: Option<&str>| {
            let header = Header { kid: kid.map(str::to_owned), ..Header::new(Algorithm::HS256) };
            encode(&header, &claims("courant", 60), &key).unwrap()
        };
        assert!(tokens.authenticate(&signed(Some("new"))).is_ok());
        for kid in [None, Some("old"), Some("other")] {
            assert_eq!(refusal(&tokens, &signed(kid)).code, Code::Unauthenticated, "{kid:?}");
        }
    }

    #[test]
    fn time_and_audience_count() {
        let tokens = Keys::new().tokens(&["new"]);
        assert!(tokens.authenticate(&tokens.sign(&claims("courant", 60))).is_ok());
        let over = refusal(&tokens, &tokens.sign(&claims("courant", -1)));
        assert!(over.message.contains("refresh"), "{}", over.message);
        assert_eq!(refusal(&tokens, &tokens.sign(&claims("others", 60))).code, Code::Unauthenticated);
        let key = EncodingKey::from_secret("new".repeat(20).as_bytes());
        let header = Header { kid: Some("new".to_owned()), ..Header::new(Algorithm::HS256) };
        let lasting = json!({"sub": "user_1", "sid": "s", "did": "d", "iat": 1, "aud": "courant"});
        let for_ever = encode(&header, &lasting, &key).unwrap();
        assert_eq!(refusal(&tokens, &for_ever).code, Code::Unauthenticated, "no end, no token");
    }
}
