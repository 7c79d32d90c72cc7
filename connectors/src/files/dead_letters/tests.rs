use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use bytes::Bytes;

use super::*;

pub(in crate::files) fn letter(payload: &'static [u8]) -> NewLetter {
    NewLetter {
        pipeline: "ingest".into(),
        stage: "persist".into(),
        class: "reject".into(),
        error: "no such chat".into(),
        attempts: 1,
        failed_at: 1_700_000_000_000,
        key: Some("chat_1".into()),
        headers: [("origin".to_owned(), "conn_1".to_owned())].into(),
        payload: Bytes::from_static(payload),
    }
}

async fn journal(folder: &Path) -> DeadLetterJournal {
    DeadLetterJournal::open(folder).await.unwrap()
}

async fn payloads(journal: &DeadLetterJournal, queue: &str) -> Vec<String> {
    let letters = journal.list(Some(queue), usize::MAX).await.unwrap();
    letters.iter().map(|stored| String::from_utf8_lossy(&stored.letter.payload).into_owned()).collect()
}

fn tear(folder: &Path, file: &str, tail: &[u8]) {
    let mut file = OpenOptions::new().append(true).open(folder.join(file)).unwrap();
    file.write_all(tail).unwrap();
}

#[tokio::test]
async fn letters_read_back_as_they_were_whatever_the_payload() {
    let folder = tempfile::tempdir().unwrap();
    let written = [letter(br#"{"text":"a\nb"}"#), letter(b"\xff\x00 not text"), letter(b"")];
    let ids = journal(folder.path()).await.append("q", written.to_vec()).await.unwrap();

    let again = journal(folder.path()).await;
    let (read, _) = again.pending("q", &Cursor::default(), 10).await.unwrap();
    assert!(ids.is_sorted() && ids.iter().all(|id| id.starts_with("dl_")));
    assert_eq!(read.iter().map(|stored| &stored.id).collect::<Vec<_>>(), ids.iter().collect::<Vec<_>>());
    assert!(read.iter().map(|stored| &stored.letter).eq(&written));
    assert_eq!(again.get(&ids[1]).await.unwrap().unwrap().letter, written[1]);
    assert_eq!(again.get("dl_none").await.unwrap(), None);
}

#[tokio::test]
async fn a_torn_tail_is_ignored_and_later_letters_are_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let journal = journal(folder.path()).await;
    journal.append("q", vec![letter(b"1")]).await.unwrap();
    tear(folder.path(), "q.jsonl", br#"{"id":"dl_torn","queue":"q","pipel"#);
    assert_eq!(payloads(&journal, "q").await, ["1"]);
    journal.append("q", vec![letter(b"2")]).await.unwrap();
    assert_eq!(payloads(&journal, "q").await, ["1", "2"]);
    // Longer than what is written over it, and than one step of looking for its start.
    tear(folder.path(), "q.jsonl", &[b'x'; 10_000]);
    journal.append("q", vec![letter(b"3")]).await.unwrap();
    assert!(std::fs::read(folder.path().join("q.jsonl")).unwrap().ends_with(b"\n"));
    assert_eq!(payloads(&journal, "q").await, ["1", "2", "3"]);
}

#[tokio::test]
async fn a_torn_mark_is_not_glued_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let journal = journal(folder.path()).await;
    let ids = journal.append("q", vec![letter(b"1"), letter(b"2"), letter(b"3")]).await.unwrap();
    journal.settle("q", vec![ids[0].clone()]).await.unwrap();
    tear(folder.path(), "q.settled", b"dl_01");
    journal.settle("q", vec![ids[1].clone()]).await.unwrap();
    assert_eq!(payloads(&journal, "q").await, ["3"]);
    journal.settle("q", vec!["3".into(), format!("x\n{}", ids[2])]).await.unwrap();
    assert_eq!(payloads(&journal, "q").await, ["3"], "what is no id settles nothing");
}

#[tokio::test]
async fn a_damaged_line_is_skipped_and_survives_compaction() {
    let folder = tempfile::tempdir().unwrap();
    let journal = journal(folder.path()).await;
    let first = journal.append("q", vec![letter(b"1")]).await.unwrap();
    tear(folder.path(), "q.jsonl", b"zzz\n");
    journal.append("q", vec![letter(b"2")]).await.unwrap();
    assert_eq!(payloads(&journal, "q").await, ["1", "2"]);
    // Three lines, three marks: that rewrites the file.
    journal.settle("q", vec![first[0].clone(); 3]).await.unwrap();
    assert!(!folder.path().join("q.settled").exists());
    assert_eq!(payloads(&journal, "q").await, ["2"]);
    assert!(std::fs::read_to_string(folder.path().join("q.jsonl")).unwrap().contains("zzz\n"));
}

#[tokio::test]
async fn a_queue_shrinks_when_all_is_settled_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let journal = journal(folder.path()).await;
    let ids = journal.append("q", vec![letter(b"1"), letter(b"2")]).await.unwrap();
    let (_, old) = journal.pending("q", &Cursor::default(), 10).await.unwrap();
    journal.settle("q", ids).await.unwrap();
    assert!(!folder.path().join("q.settled").exists());
    assert!(std::fs::metadata(folder.path().join("q.jsonl")).unwrap().len() < 100);

    journal.append("q", vec![letter(b"3")]).await.unwrap();
    let (letters, cursor) = journal.pending("q", &old, 10).await.unwrap();
    assert_eq!(letters.len(), 1, "a cursor from before the compaction still finds new letters");
    assert_eq!(journal.pending("q", &cursor, 10).await.unwrap().0, []);
    assert_eq!(journal.queues().await.unwrap(), [QueueDepth { queue: "q".into(), pending: 1 }]);
}

#[tokio::test]
async fn a_rewrite_that_died_before_it_removed_the_marks_harms_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let journal = journal(folder.path()).await;
    let ids = journal.append("q", vec![letter(b"1"), letter(b"2"), letter(b"3")]).await.unwrap();
    journal.settle("q", ids[..2].to_vec()).await.unwrap();
    let marks = std::fs::read(folder.path().join("q.settled")).unwrap();
    journal.settle("q", vec![ids[1].clone()]).await.unwrap();
    std::fs::write(folder.path().join("q.settled"), marks).unwrap();
    assert_eq!(payloads(&journal, "q").await, ["3"]);
}

#[tokio::test]
async fn another_handle_settles_while_this_one_appends() {
    let folder = tempfile::tempdir().unwrap();
    let (server, command) = (journal(folder.path()).await, journal(folder.path()).await);
    let appending = tokio::spawn(async move {
        for _ in 0..50 {
            server.append("q", vec![letter(b"x"), letter(b"y")]).await.unwrap();
        }
    });
    let mut settled = 0;
    let mut cursor = Cursor::default();
    loop {
        let is_last = appending.is_finished();
        let (letters, behind) = command.pending("q", &cursor, 7).await.unwrap();
        if is_last && letters.is_empty() {
            break;
        }
        settled += letters.len();
        cursor = behind;
        command.settle("q", letters.into_iter().map(|letter| letter.id).collect()).await.unwrap();
    }
    appending.await.unwrap();
    assert_eq!(settled, 100);
    assert_eq!(command.list(None, 10).await.unwrap(), []);
}

#[tokio::test]
async fn listing_shows_the_first_of_all_queues() {
    let folder = tempfile::tempdir().unwrap();
    let journal = journal(folder.path()).await;
    for (queue, payload) in [("b", b"1"), ("a/../x", b"2"), ("b", b"3")] {
        journal.append(queue, vec![letter(payload)]).await.unwrap();
    }
    let first = journal.list(None, 2).await.unwrap();
    assert_eq!(first.iter().map(|letter| letter.queue.as_str()).collect::<Vec<_>>(), ["b", "a/../x"]);
    assert_eq!(journal.list(Some("b"), 9).await.unwrap().len(), 2);
    assert!(journal.append("", vec![letter(b"1")]).await.is_err());
}

#[tokio::test]
async fn a_clock_set_back_changes_neither_order_nor_number() {
    let folder = tempfile::tempdir().unwrap();
    let journal = journal(folder.path()).await;
    journal.append("q", vec![letter(b"1"), letter(b"2"), letter(b"3")]).await.unwrap();
    // As if the second had been written in 1970.
    let file = folder.path().join("q.jsonl");
    let content = std::fs::read_to_string(&file).unwrap();
    let second = journal.list(Some("q"), 9).await.unwrap()[1].id.clone();
    std::fs::write(&file, content.replace(&second, "dl_00000000000000000000000000")).unwrap();
    assert_eq!(payloads(&journal, "q").await, ["1", "2", "3"]);
    let seen = journal.fold("q", 0, |seen, _| *seen += 1).await.unwrap();
    assert_eq!(seen, 3);
}

#[tokio::test]
async fn looking_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let absent = DeadLetterJournal::unopened(folder.path().join("absent"));
    assert_eq!(absent.list(None, 9).await.unwrap(), []);
    assert_eq!(absent.list(Some("q"), 9).await.unwrap(), []);
    assert_eq!(absent.get("dl_x").await.unwrap(), None);
    assert_eq!(absent.queues().await.unwrap(), []);
    assert_eq!(absent.pending("q", &Cursor::default(), 9).await.unwrap().0, []);
    let journal = journal(folder.path()).await;
    assert_eq!(journal.fold("nosuch", 0, |seen, _| *seen += 1).await.unwrap(), 0);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
