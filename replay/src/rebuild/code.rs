//! Which build of the command made a receipt.
//!
//! The version is the same for all builds between two releases, so it goes with a hash of the executable itself. Rejected:
//! the commit, which has to be known when it is built, and says nothing of what was changed and not committed.

use std::io::{self, Read as _};

use tokio::sync::OnceCell;
use xxhash_rust::xxh3::Xxh3;

/// What runs, also when another file has taken its place since.
const EXECUTABLE: &str = "/proc/self/exe";

/// The version, and the build as far as it can be told. The same for as long as the process runs.
pub(super) async fn code() -> &'static str {
    static CODE: OnceCell<String> = OnceCell::const_new();
    CODE.get_or_init(|| async {
        let hashed =
            tokio::task::spawn_blocking(|| hash_of(EXECUTABLE)).await.map_err(io::Error::other).flatten();
        let build = hashed.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the executable, receipts name its version only");
            "unknown".to_owned()
        });
        format!("{}+{build}", env!("CARGO_PKG_VERSION"))
    })
    .await
}

/// Blocks.
fn hash_of(path: &str) -> io::Result<String> {
    let (mut file, mut hash) = (std::fs::File::open(path)?, Xxh3::new());
    let mut part = vec![0; 1 << 20];
    loop {
        match file.read(&mut part)? {
            0 => return Ok(format!("{:016x}", hash.digest())),
            read => hash.update(&part[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_told_apart_by_any_byte() {
        let folder = tempfile::tempdir().unwrap();
        let hash = |bytes: &[u8]| {
            let path = folder.path().join("executable");
            std::fs::write(&path, bytes).unwrap();
            hash_of(path.to_str().unwrap()).unwrap()
        };
        let build = vec![7; (1 << 20) + 10];
        let first = hash(&build);
        assert_eq!(hash(&build), first);
        for place in [0, 1 << 20, (1 << 20) + 9] {
            let mut other = build.clone();
            other[place] = 8;
            assert_ne!(hash(&other), first, "byte {place}");
        }
    }
}
