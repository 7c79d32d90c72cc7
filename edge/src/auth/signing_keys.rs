//! Where the secrets come from that tokens are signed with: the environment, files, or a key of our own in the data folder.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rand::RngExt as _;
use sha2::{Digest as _, Sha256};

use super::config::SigningKeyConfig;

/// As long as the hash it goes into: a shorter secret is easier to guess than a signature.
const SHORTEST: usize = 32;
/// In the data folder.
const FILE: &str = "signing-key";

/// Why there is nothing to sign tokens with.
#[derive(Debug, thiserror::Error)]
pub enum SigningKeyError {
    #[error("signing key '{id}' of [auth] needs one of 'secret_env' and 'secret_file'")]
    NotNamed { id: String },
    #[error("two signing keys of [auth] have the id '{id}'; tokens name their key by it")]
    SameId { id: String },
    #[error(
        "the environment variable '{variable}' should hold the secret of signing key '{id}' of [auth]; set it"
    )]
    NotSet { id: String, variable: String },
    #[error("cannot read the secret of a signing key from '{}': {source}", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("cannot keep a signing key in '{}': {source}", .path.display())]
    NotKept { path: PathBuf, source: io::Error },
    #[error(
        "the secret of signing key '{id}' is shorter than {SHORTEST} characters; \
         make one with `openssl rand -base64 48`"
    )]
    TooShort { id: String },
    #[error("others can read the signing key '{}' and sign in as anybody; `chmod 600` it, or remove it for a new one", .path.display())]
    NotPrivate { path: PathBuf },
}

/// A secret and the name that tokens call it by.
pub(super) struct SigningKey {
    pub(super) id: String,
    pub(super) secret: String,
}

pub(super) fn named(keys: &[SigningKeyConfig]) -> Result<Vec<SigningKey>, SigningKeyError> {
    for (at, key) in keys.iter().enumerate() {
        if keys[..at].iter().any(|earlier| earlier.id == key.id) {
            return Err(SigningKeyError::SameId { id: key.id.clone() });
        }
    }
    keys.iter().map(|key| long_enough(key.id.clone(), &secret(key)?)).collect()
}

fn secret(key: &SigningKeyConfig) -> Result<String, SigningKeyError> {
    match (&key.secret_env, &key.secret_file) {
        (Some(variable), None) => std::env::var(variable)
            .map_err(|_| SigningKeyError::NotSet { id: key.id.clone(), variable: variable.clone() }),
        (None, Some(path)) => read(path),
        _ => Err(SigningKeyError::NotNamed { id: key.id.clone() }),
    }
}

fn read(path: &Path) -> Result<String, SigningKeyError> {
    fs::read_to_string(path).map_err(|source| SigningKeyError::Unreadable { path: path.to_owned(), source })
}

fn long_enough(id: String, secret: &str) -> Result<SigningKey, SigningKeyError> {
    let secret = secret.trim_end();
    if secret.len() < SHORTEST {
        return Err(SigningKeyError::TooShort { id });
    }
    Ok(SigningKey { id, secret: secret.to_owned() })
}

/// The key in the data folder, made if there is none, so that tokens survive a restart.
pub(super) fn kept(data_dir: &Path) -> Result<SigningKey, SigningKeyError> {
    let path = data_dir.join(FILE);
    let not_kept = |source| SigningKeyError::NotKept { path: path.clone(), source };
    if !path.try_exists().map_err(not_kept)? {
        make(data_dir, &path).map_err(not_kept)?;
    }
    let secret = read(&path)?;
    let mode = fs::metadata(&path).map_err(not_kept)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(SigningKeyError::NotPrivate { path });
    }
    // Another key has another id, so that its tokens are not taken for tampered ones.
    let digest = Sha256::digest(secret.trim_end());
    long_enough(format!("kept-{}", BASE64_URL_SAFE_NO_PAD.encode(&digest[..6])), &secret)
}

/// Writes the file aside and links it into place: nobody ever reads half a key, and of two processes that start at the
/// same moment one wins.
fn make(data_dir: &Path, path: &Path) -> io::Result<()> {
    let secret: [u8; 48] = rand::rng().random();
    fs::create_dir_all(data_dir)?;
    let aside = data_dir.join(format!("{FILE}.{}", std::process::id()));
    let _ = fs::remove_file(&aside);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    writeln!(file, "{}", BASE64_URL_SAFE_NO_PAD.encode(secret))?;
    file.sync_all()?;
    let linked = match fs::hard_link(&aside, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    };
    fs::remove_file(&aside)?;
    linked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_file(id: &str, path: &Path) -> SigningKeyConfig {
        SigningKeyConfig { id: id.to_owned(), secret_env: None, secret_file: Some(path.to_owned()) }
    }

    #[test]
    fn a_key_is_made_once_and_is_its_owners() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let made = kept(&data).unwrap();
        let again = kept(&data).unwrap();
        assert_eq!((&made.id, &made.secret), (&again.id, &again.secret));
        assert!(made.secret.len() >= 64 && made.id.starts_with("kept-"));
        let path = data.join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&data).unwrap().count(), 1, "nothing is left aside");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(kept(&data), Err(SigningKeyError::NotPrivate { .. })));
        fs::remove_file(&path).unwrap();
        assert_ne!(kept(&data).unwrap().id, made.id);
    }

    #[test]
    fn what_is_wrong_with_a_key_is_said_without_its_secret() {
        let folder = tempfile::tempdir().unwrap();
        let (short, long) = (folder.path().join("short"), folder.path().join("long"));
        fs::write(&short, "hunter2\n").unwrap();
        fs::write(&long, format!("{}\n", "k".repeat(SHORTEST))).unwrap();
        let keys = named(&[in_file("a", &long)]).unwrap();
        assert_eq!(keys[0].secret, "k".repeat(SHORTEST), "the line break does not count");
        let nowhere = SigningKeyConfig { secret_file: None, ..in_file("c", &long) };
        let unset = SigningKeyConfig { secret_env: Some("COURANT_TEST_UNSET".into()), ..nowhere.clone() };
        for (config, expected) in [
            (vec![in_file("b", &short)], "openssl rand"),
            (vec![in_file("a", &long), in_file("a", &long)], "two signing keys"),
            (vec![nowhere], "secret_env"),
            (vec![unset], "COURANT_TEST_UNSET"),
            (vec![in_file("d", &folder.path().join("missing"))], "missing"),
        ] {
            let error = named(&config).err().expect(expected).to_string();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
