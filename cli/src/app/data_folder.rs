//! The data folder: readable by its owner only, and used by one process at a time.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, bail};

/// A data folder that nobody else runs pipelines in, until this is dropped or the process ends. Looking at what is in
/// it needs no such thing: its files have locks of their own.
pub(super) struct DataFolder {
    _lock: File,
}

impl DataFolder {
    /// Creates the folder if it is missing; one that is there keeps its permissions.
    pub(super) fn create(folder: &Path) -> anyhow::Result<()> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        created.with_context(|| format!("cannot create the data folder `{}`", folder.display()))
    }

    /// Creates the folder if it is missing, and takes it.
    pub(super) fn take(folder: &Path) -> anyhow::Result<Self> {
        Self::create(folder)?;
        let path = folder.join("lock");
        let failed = |doing: &str| format!("cannot {doing} `{}`", path.display());
        let lock = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let lock = lock.with_context(|| failed("open the lock"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { _lock: lock }),
            Err(TryLockError::WouldBlock) => bail!(
                "another courant uses the data folder `{}`; stop it with `courant stop`, or give this one another `runtime.data_dir`",
                folder.display()
            ),
            Err(TryLockError::Error(error)) => Err(error).with_context(|| failed("take the lock")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_folder_is_used_by_one_at_a_time_and_read_by_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("a/data");
        let first = DataFolder::take(&data).unwrap();
        let second = DataFolder::take(&data).err().expect("the first one has it").to_string();
        assert!(second.contains("a/data") && second.contains("courant stop"), "{second}");
        drop(first);
        DataFolder::take(&data).unwrap();

        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&data), mode(&data.join("lock"))), (0o700, 0o600));
    }
}
