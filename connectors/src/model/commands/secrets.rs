//! Commands that hold secrets are printed without them: what is printed ends up in logs.

use std::fmt::{Debug, Formatter, Result};

use super::{OpenSession, Register, RotateSession, VerifyPhone};

impl Debug for Register {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Register")
            .field("user_id", &self.user_id)
            .field("phone_number", &self.phone_number)
            .field("display_name", &self.display_name)
            .field("code_expires_at", &self.code_expires_at)
            .field("in_use_from", &self.in_use_from)
            .finish_non_exhaustive()
    }
}

impl Debug for VerifyPhone {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("VerifyPhone").field("phone_number", &self.phone_number).finish_non_exhaustive()
    }
}

impl Debug for OpenSession {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("OpenSession")
            .field("session_id", &self.session_id)
            .field("user_id", &self.user_id)
            .field("device_id", &self.device_id)
            .field("device_name", &self.device_name)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

impl Debug for RotateSession {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("RotateSession")
            .field("session_id", &self.session_id)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;
    use crate::model::commands::{Command, InUseFrom};

    #[test]
    fn secrets_are_not_printed_and_all_are_listed() {
        let (end, secret) = (Timestamp::from_unix_millis(1_769_783_400_000), || "s3cr3t".to_owned());
        let commands = [
            Command::Register(Register {
                user_id: "user_1".into(),
                phone_number: "+41791234567".to_owned(),
                display_name: "Ada".to_owned(),
                password_hash: secret(),
                code: secret(),
                code_expires_at: end,
                in_use_from: InUseFrom::Verification,
            }),
            Command::VerifyPhone(VerifyPhone { phone_number: "+41791234567".to_owned(), code: secret() }),
            Command::OpenSession(OpenSession {
                session_id: "sess_1".into(),
                user_id: "user_1".into(),
                device_id: "dev_1".into(),
                device_name: None,
                refresh_token_hash: secret(),
                expires_at: end,
            }),
            Command::RotateSession(RotateSession {
                session_id: "sess_1".into(),
                spent_hash: secret(),
                new_hash: secret(),
                expires_at: end,
            }),
        ];
        for command in commands {
            let printed = format!("{command:?}");
            assert!(printed.len() > 40 && !printed.contains("s3cr3t"), "{printed}");
            let mut json = serde_json::to_value(&command).unwrap();
            for secret in Command::SECRETS {
                json.as_object_mut().unwrap().remove(secret);
            }
            assert!(!json.to_string().contains("s3cr3t"), "{json}");
        }
    }
}
