//! A copy of the whole folder as it is at one moment, while it is used.
//!
//! A backup is an engine's folder itself: it opens like any other, and restoring is copying it. It is made from one
//! snapshot, tree by tree, in a folder beside its place, synced and then renamed there: under its name is a whole backup
//! or nothing. Copying the files instead would be faster, and not consistent while the engine writes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fjall::{Database, Keyspace, PersistMode, Readable, Snapshot};

use super::care::{CareError, Part, Progress, blocking};
use super::shared::{folder_builder, open_keyspace};
use super::{Engine, Options};

/// What goes into a file of the copy at once, and so is held in memory.
const BATCH_BYTES: usize = 8 << 20;

impl Engine {
    /// Copies everything to a folder that does not exist yet. Goes on beside reads and writes; what is written after it
    /// began is not in it.
    pub async fn backup(
        &self,
        to: &Path,
        mut progress: impl FnMut(Progress<'_>) + Send,
    ) -> Result<(), CareError> {
        refuse_existing(to)?;
        let unfinished = beside(to, "unfinished");
        let failed = |error: &dyn std::fmt::Display| failed(to, error);
        remove_leftover(&unfinished).map_err(|error| failed(&error))?;
        let (snapshot, parts) = self.one_moment();
        let folder = unfinished.clone();
        let copy = blocking(move || folder_builder(&folder).open()).await;
        let copy = copy.map_err(|error| failed(&error))?;
        for (done, part) in parts.iter().enumerate() {
            progress(Progress { what: &part.name, done, of: parts.len() });
            for keyspace in part.keyspaces.clone() {
                let (snapshot, copy) = (Arc::clone(&snapshot), copy.clone());
                let copied = blocking(move || copy_keyspace(&snapshot, &keyspace, &copy)).await;
                copied.map_err(|error| failed(&error))?;
            }
        }
        let to = to.to_owned();
        let finished = blocking(move || finish(copy, &unfinished, &to)).await;
        finished.map_err(|error| failed(&error))
    }
}

impl Engine {
    /// A snapshot and the parts that it consists of. A table or topic that comes or goes just then is in both or has
    /// nothing in it, since a catalog in memory changes only after the one on disk.
    fn one_moment(&self) -> (Arc<Snapshot>, Vec<Part>) {
        let ids = |parts: &[Part]| -> Vec<u64> {
            parts.iter().flat_map(|part| &part.keyspaces).map(Keyspace::id).collect()
        };
        loop {
            let before = self.shared.parts();
            let snapshot = self.shared.moment();
            let after = self.shared.parts();
            if ids(&before) == ids(&after) {
                return (snapshot, after);
            }
        }
    }
}

/// Copies a backup to a folder that does not exist yet or is empty, after looking whether it can be opened and its
/// parts agree.
pub async fn restore(
    from: &Path,
    to: &Path,
    progress: impl FnMut(Progress<'_>) + Send,
) -> Result<(), CareError> {
    match std::fs::read_dir(to).map(|mut entries| entries.next().is_none()) {
        Ok(false) => return Err(CareError::Exists { folder: to.to_owned() }),
        Ok(true) => std::fs::remove_dir(to).map_err(|error| failed(to, &error))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(to, &error)),
    }
    if !is_engine_folder(from) {
        return Err(CareError::NoBackup { folder: from.to_owned() });
    }
    // what ended since it was made is still part of it
    let backup = Engine::open_as_it_is(from.to_owned(), Options::default()).await?;
    let checked = backup.check(|_| ()).await?;
    if let Some(finding) = checked.findings.first() {
        return Err(failed(from, finding));
    }
    // the same as a backup: what arrives under its name is whole
    let restored = backup.backup(to, progress).await;
    backup.close().await;
    restored
}

/// Whether the folder was made by an engine. Opening would make it into one.
pub fn is_engine_folder(folder: &Path) -> bool {
    folder.join("version").is_file()
}

fn refuse_existing(to: &Path) -> Result<(), CareError> {
    if to.exists() { Err(CareError::Exists { folder: to.to_owned() }) } else { Ok(()) }
}

/// What a backup left that was interrupted.
fn remove_leftover(unfinished: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(unfinished) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(suffix);
    path.with_file_name(name)
}

fn failed(folder: &Path, error: &dyn std::fmt::Display) -> CareError {
    CareError::Failed { folder: folder.to_owned(), what: error.to_string() }
}

fn copy_keyspace(snapshot: &Snapshot, from: &Keyspace, copy: &Database) -> Result<(), fjall::Error> {
    let to = open_keyspace(copy, from.name())?;
    let mut batch = copy.batch();
    let mut bytes = 0;
    for guard in snapshot.iter(from) {
        let (key, value) = guard.into_inner()?;
        bytes += key.len() + value.len();
        batch.insert(&to, key, value);
        if bytes >= BATCH_BYTES {
            std::mem::replace(&mut batch, copy.batch()).commit()?;
            bytes = 0;
        }
    }
    batch.commit()
}

/// Puts the copy on disk and gives it its name.
fn finish(copy: Database, unfinished: &Path, to: &Path) -> Result<(), fjall::Error> {
    copy.persist(PersistMode::SyncAll)?;
    drop(copy);
    std::fs::rename(unfinished, to)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(std::fs::File::open(parent)?.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tables::messages::{self, Message};
    use crate::store::{AdminStore as _, Durability, Returning, WriteStore as _};

    /// As they once were made, with large values compressed in the journal.
    #[tokio::test]
    async fn a_backup_with_a_compressed_journal_is_restored() {
        let place = tempfile::tempdir().unwrap();
        let engine = Engine::open(place.path().join("data"), Options::default()).await.unwrap();
        engine.create_table(&messages::SCHEMA).await.unwrap();
        let write = messages::put_write(&Message {
            chat_id: "chat_1".into(),
            sequence: 1,
            message_id: "msg_1".into(),
            sender_id: "user_1".into(),
            client_message_id: "c-1".into(),
            content: "long ".repeat(1000).into(),
            content_type: "text/plain".into(),
            created_at: crate::model::Timestamp::from_unix_millis(1_769_783_400_000),
        });
        engine.write(write, Returning::Nothing, Durability::Synced).await.unwrap();
        let written = engine.check(|_| ()).await.unwrap();

        let (backup, to) = (place.path().join("backup"), place.path().join("to"));
        let copy = Database::builder(&backup).manual_journal_persist(true).open().unwrap();
        let (snapshot, parts) = engine.one_moment();
        for keyspace in parts.iter().flat_map(|part| &part.keyspaces) {
            copy_keyspace(&snapshot, keyspace, &copy).unwrap();
        }
        copy.persist(PersistMode::SyncAll).unwrap();
        drop(copy);
        restore(&backup, &to, |_| ()).await.unwrap();
        let restored = Engine::open(to, Options::default()).await.unwrap();
        assert_eq!(restored.check(|_| ()).await.unwrap(), written);
    }
}
