//! Writing again, in any order, with failures in between.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::testing::{ask, found, message, open};
use super::super::walk;
use super::*;

/// What the folder holds: chat and sequence, then version and text. Each only once.
fn held(folder: &Path) -> BTreeMap<(String, u64), (u64, String)> {
    let mut held = BTreeMap::new();
    walk(folder, |message| {
        let key = (message.chat_id.to_string(), message.sequence);
        let twice = held.insert(key, (message.version, message.content.to_string()));
        assert_eq!(twice, None, "{}/{} is there twice", message.chat_id, message.sequence);
    })
    .unwrap();
    held
}

fn image(chat: &str, sequence: u64, version: u64) -> Message<'static> {
    Message { version, ..message(chat, sequence, &format!("version{version}")) }
}

#[test]
fn what_is_written_twice_is_there_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = open(folder.path());
    let batch = [message("a", 1, "one"), message("b", 1, "uno"), message("a", 2, "two")];
    assert_eq!(writer.write(&batch).unwrap(), Written { new: 3, known: 0 });
    assert_eq!(writer.write(&batch).unwrap(), Written { new: 0, known: 3 });
    let doubled = [message("a", 3, "three"), message("a", 3, "three"), message("a", 1, "one")];
    assert_eq!(writer.write(&doubled).unwrap(), Written { new: 1, known: 2 });
    drop(writer);
    // another process knows nothing of what the first one remembered
    let mut writer = open(folder.path());
    assert_eq!(writer.write(&batch).unwrap(), Written { new: 0, known: 3 });
    assert_eq!(writer.write(&[message("a", 4, "four")]).unwrap(), Written { new: 1, known: 0 });
    assert_eq!(held(folder.path()).len(), 5);
    assert_eq!(writer.reader().len(), 5);
}

#[test]
fn the_newer_image_wins_in_whatever_order_they_come() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = open(folder.path());
    writer.write(&[image("a", 1, 1), image("a", 2, 3), image("a", 2, 2)]).unwrap();
    writer.write(&[image("a", 1, 2), image("a", 2, 1)]).unwrap();
    writer.write(&[image("a", 1, 0)]).unwrap();
    let expected = [
        (("a".to_owned(), 1), (2, "version2".to_owned())),
        (("a".to_owned(), 2), (3, "version3".to_owned())),
    ];
    assert_eq!(held(folder.path()), expected.into());
    let page = writer.reader().ask(&ask("version1", &["a"])).unwrap();
    assert_eq!(found(&page), [], "what was replaced is not found");
}

#[test]
fn a_gap_that_is_filled_later_is_filled() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = open(folder.path());
    writer.write(&[message("a", 1, "x"), message("a", 9, "x")]).unwrap();
    assert_eq!(writer.write(&[message("a", 5, "x")]).unwrap(), Written { new: 1, known: 0 });
    assert_eq!(held(folder.path()).len(), 3);
}

#[test]
fn a_second_writer_is_refused_and_told_why() {
    let folder = tempfile::tempdir().unwrap();
    let writer = open(folder.path());
    let options = IndexOptions { threads: 1, memory: MEMORY_PER_THREAD };
    let refused = IndexWriter::open(folder.path(), options).err().unwrap();
    assert!(matches!(refused, SearchError::InUse { .. }), "{refused}");
    assert!(refused.to_string().contains("another process"), "{refused}");
    drop(writer);
    // a lock file that was left behind is nobody's lock
    assert!(folder.path().join(".tantivy-writer.lock").exists());
    open(folder.path());
}

#[test]
fn damage_says_what_to_do() {
    let spoil = |name: &str, content: &[u8]| {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = open(folder.path());
        writer.write(&[message("a", 1, "tea")]).unwrap();
        drop(writer);
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.to_str().unwrap().ends_with(name) {
                std::fs::write(&path, content).unwrap();
            }
        }
        let options = IndexOptions { threads: 1, memory: MEMORY_PER_THREAD };
        let opened = IndexWriter::open(folder.path(), options).err().map(|error| error.to_string());
        let walked = walk(folder.path(), |_| {}).err().map(|error| error.to_string());
        [opened, walked]
    };
    for (name, content) in [("meta.json", &b"{"[..]), (".store", b""), (".term", b"zz"), (".idx", b"")] {
        for said in spoil(name, content) {
            let said = said.unwrap_or_else(|| panic!("{name} was not missed"));
            assert!(said.contains("is damaged") && said.contains("courant replay"), "{name}: {said}");
        }
    }
    let other = spoil("meta.json", br#"{"index_settings":{},"segments":[],"schema":[],"opstamp":0}"#);
    assert!(other[0].as_ref().unwrap().contains("made by another version"), "{other:?}");
}

#[test]
fn a_failure_of_the_disk_loses_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (folder, away) = (home.path().join("index"), home.path().join("away"));
    std::fs::create_dir(&folder).unwrap();
    let mut writer = open(&folder);
    writer.write(&[message("a", 1, "one")]).unwrap();
    std::fs::rename(&folder, &away).unwrap();
    for _ in 0..2 {
        let error = writer.write(&[message("a", 2, "two")]).unwrap_err();
        assert!(matches!(error, SearchError::Io { .. }), "{error}");
    }
    std::fs::rename(&away, &folder).unwrap();
    assert_eq!(writer.write(&[message("a", 2, "two")]).unwrap(), Written { new: 1, known: 0 });
    assert_eq!(held(&folder).len(), 2);
}

#[test]
fn an_empty_folder_holds_nothing_and_stays_empty() {
    let folder = tempfile::tempdir().unwrap();
    walk(folder.path(), |message| panic!("{message:?}")).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// What may happen to an index.
#[derive(Debug, Clone)]
enum Step {
    /// Chat, sequence and version of each message.
    Write(Vec<(u8, u64, u64)>),
    /// A batch is added and the writer dies before it commits.
    Crash(Vec<(u8, u64, u64)>),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let batch = proptest::collection::vec((0..3_u8, 1..8_u64, 0..3_u64), 1..12);
    let step = prop_oneof![
        6 => batch.clone().prop_map(Step::Write),
        2 => batch.prop_map(Step::Crash),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec(step, 1..10)
}

fn images(batch: &[(u8, u64, u64)]) -> Vec<Message<'static>> {
    batch
        .iter()
        .map(|(chat, sequence, version)| image(&format!("chat_{chat}"), *sequence, *version))
        .collect()
}

/// Adds without committing, and dies.
fn crash(writer: &mut IndexWriter, messages: &[Message<'_>]) {
    let dying = writer.writer.take().unwrap_or_else(|| writer.begin().unwrap());
    for message in messages {
        dying.delete_term(writer.key_of(message));
        dying.add_document(writer.fields.document(message, message.digest())).unwrap();
    }
    drop(dying);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Any writes, with duplicates, in any order, with crashes in between, leave the newest image of each message.
    #[test]
    fn an_index_is_what_was_written(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = open(folder.path());
        let mut model: BTreeMap<(String, u64), (u64, String)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Write(batch) => {
                    let batch = images(&batch);
                    writer.write(&batch).unwrap();
                    for message in batch {
                        let (version, text) = (message.version, message.content.to_string());
                        let newest = model.entry((message.chat_id.to_string(), message.sequence)).or_default();
                        *newest = (version, text).max(newest.clone());
                    }
                }
                Step::Crash(batch) => crash(&mut writer, &images(&batch)),
                Step::Reopen => {
                    drop(writer);
                    writer = open(folder.path());
                }
            }
            prop_assert_eq!(&held(folder.path()), &model);
        }
    }
}
