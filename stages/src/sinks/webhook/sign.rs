//! Signatures of requests, as Standard Webhooks says.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::web::Secret;

/// Secrets of that form are base64.
const PREFIX: &str = "whsec_";
/// A shorter secret is guessed.
const SHORTEST: usize = 16;

#[derive(Clone)]
pub(super) struct Signer(Hmac<Sha256>);

impl Signer {
    /// None if requests are not signed; the reason if the secret cannot be used, without the secret.
    pub(super) fn of(secret: &Secret) -> Result<Option<Self>, String> {
        let Some((text, place)) = secret.read()? else { return Ok(None) };
        Self::new(&text).map(Some).map_err(|reason| format!("the secret in {place} {reason}"))
    }

    fn new(secret: &str) -> Result<Self, String> {
        let key = match secret.strip_prefix(PREFIX) {
            Some(encoded) => {
                BASE64_STANDARD.decode(encoded).map_err(|_| "is not base64 behind `whsec_`".to_owned())?
            }
            None => secret.as_bytes().to_vec(),
        };
        if key.len() < SHORTEST {
            return Err(format!("is shorter than {SHORTEST} bytes; make one with `openssl rand -base64 32`"));
        }
        Hmac::new_from_slice(&key).map(Self).map_err(|_| "cannot be a key".to_owned())
    }

    pub(super) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut mac = self.0.clone();
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn signatures_are_those_of_the_standard() {
        let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_that_is_wrong_is_not_shown() {
        for wrong in ["hunter2", "whsec_!!!!!!!!!!!!!!!!!!!!!!!!!!!!", "whsec_c2hvcnQ="] {
            let said = Signer::new(wrong).err().unwrap();
            assert!(!said.contains(wrong) && !said.contains("c2hv"), "{said}");
        }
    }
}
