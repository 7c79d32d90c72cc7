use std::io::Write as _;
use std::path::Path;

use super::*;

fn at(offset: u64) -> Start {
    Start { offset, file: None }
}

fn line(text: &'static str, resume_at: u64) -> Line {
    Line { text: text.into(), resume_at, truncated: false }
}

fn append(path: &Path, text: &str) {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

async fn texts(reader: &mut LineReader) -> Vec<String> {
    let lines = reader.lines(100).await.unwrap();
    lines.iter().map(|line| String::from_utf8(line.text.to_vec()).unwrap()).collect()
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.jsonl");
    (folder, path)
}

#[tokio::test]
async fn every_position_resumes_at_the_line_after_it() {
    let (_folder, path) = file();
    append(&path, "one\r\n\n  \ntwo\nthree\nfo");
    let mut reader = LineReader::open(&path, at(0), 10).await.unwrap();
    let lines = reader.lines(100).await.unwrap();
    assert_eq!(
        lines.iter().map(|line| &line.text[..]).collect::<Vec<_>>(),
        [b"one" as &[u8], b"two", b"three"]
    );
    for (index, line) in lines.iter().enumerate() {
        let mut resumed = LineReader::open(&path, at(line.resume_at), 10).await.unwrap();
        assert_eq!(resumed.lines(100).await.unwrap(), lines[index + 1..]);
    }
    assert_eq!(reader.last_line(), Some(line("fo", 21)));
    assert_eq!(reader.last_line(), None);
}

#[tokio::test]
async fn lines_come_in_portions_and_across_chunks() {
    let (_folder, path) = file();
    let long = "x".repeat(CHUNK - 3);
    append(&path, &format!("{long}\n{long}\nend\n"));
    let mut reader = LineReader::open(&path, at(0), CHUNK).await.unwrap();
    assert_eq!(reader.lines(1).await.unwrap().len(), 1);
    assert_eq!(texts(&mut reader).await, [long, "end".into()]);
}

#[tokio::test]
async fn a_line_over_the_limit_is_cut_and_the_next_one_is_whole() {
    let (_folder, path) = file();
    append(&path, "ok\n1234567890123\n1234567890\r\n12345678901\r\n");
    let mut reader = LineReader::open(&path, at(0), 10).await.unwrap();
    let lines = reader.lines(100).await.unwrap();
    let cut = |resume_at| Line { truncated: true, ..line("1234567890", resume_at) };
    assert_eq!(lines, [line("ok", 3), cut(17), line("1234567890", 29), cut(42)]);
    append(&path, "12345678901");
    assert_eq!(texts(&mut reader).await, [] as [&str; 0]);
    assert_eq!(reader.last_line(), Some(cut(53)), "the last one too");
}

#[tokio::test]
async fn an_endless_line_takes_no_more_memory_than_the_limit() {
    let (_folder, path) = file();
    append(&path, "one\n");
    let mut reader = LineReader::open(&path, at(0), 10).await.unwrap();
    assert_eq!(texts(&mut reader).await, ["one"]);
    for _ in 0..20 {
        append(&path, &"x".repeat(CHUNK));
        assert!(texts(&mut reader).await.is_empty());
        assert!(!reader.follow().await.unwrap(), "all of it has been read");
        assert!(reader.buffer.is_empty() && reader.buffer.capacity() <= 2 * CHUNK);
    }
    append(&path, "\ntwo\n");
    let end = 4 + 20 * CHUNK as u64 + 1;
    let cut = Line { truncated: true, ..line("xxxxxxxxxx", end) };
    assert_eq!(reader.lines(9).await.unwrap(), [cut, line("two", end + 4)]);
}

#[tokio::test]
async fn another_file_is_read_from_its_start_and_a_grown_one_goes_on() {
    let (folder, path) = file();
    append(&path, "one\ntwo\n");
    let mut reader = LineReader::open(&path, at(0), 10).await.unwrap();
    let first = reader.lines(1).await.unwrap();
    let start = Start { offset: first[0].resume_at, file: Some(reader.identity()) };
    append(&path, "three\n");
    assert_eq!(texts(&mut LineReader::open(&path, start, 10).await.unwrap()).await, ["two", "three"]);
    std::fs::rename(&path, folder.path().join("old")).unwrap();
    append(&path, "one\n2\n");
    assert_eq!(texts(&mut LineReader::open(&path, start, 10).await.unwrap()).await, ["one", "2"]);
}

#[tokio::test]
async fn a_file_is_known_before_its_first_position_is_handed_out() {
    let (_folder, path) = file();
    append(&path, "");
    let mut reader = LineReader::open(&path, at(0), 10).await.unwrap();
    assert!(texts(&mut reader).await.is_empty());
    append(&path, "o");
    assert!(texts(&mut reader).await.is_empty());
    append(&path, "ne\n");
    assert_eq!(texts(&mut reader).await, ["one"]);
    assert!(reader.identity().is_same(FileIdentity::at(&path).unwrap()));
}

#[tokio::test]
async fn growth_waits_for_the_whole_line() {
    let (_folder, path) = file();
    append(&path, "one\ntw");
    let mut reader = LineReader::open(&path, at(0), 10).await.unwrap();
    assert_eq!(texts(&mut reader).await, ["one"]);
    assert!(texts(&mut reader).await.is_empty());
    assert!(!reader.follow().await.unwrap());
    append(&path, "o\n");
    assert!(reader.follow().await.unwrap());
    assert_eq!(texts(&mut reader).await, ["two"]);
}

#[tokio::test]
async fn a_rotated_file_is_finished_before_the_next() {
    let (folder, path) = file();
    append(&path, "one\n");
    let mut reader = LineReader::open(&path, at(0), 10).await.unwrap();
    assert_eq!(texts(&mut reader).await, ["one"]);
    let moved = folder.path().join("old");
    std::fs::rename(&path, &moved).unwrap();
    assert!(!reader.follow().await.unwrap());
    append(&moved, "late\n");
    append(&path, "new\n");
    assert!(reader.follow().await.unwrap());
    assert_eq!(texts(&mut reader).await, ["late"]);
    let old = reader.identity();
    assert!(texts(&mut reader).await.is_empty());
    assert!(!reader.follow().await.unwrap(), "what was read last has time to be settled");
    assert!(reader.identity().is_same(old));
    assert!(reader.follow().await.unwrap());
    assert_eq!(reader.lines(9).await.unwrap(), [line("new", 4)]);
}

#[tokio::test]
async fn a_cut_file_starts_over() {
    let (_folder, path) = file();
    append(&path, "one\ntwo\n");
    let mut reader = LineReader::open(&path, at(0), 10).await.unwrap();
    assert_eq!(texts(&mut reader).await.len(), 2);
    std::fs::write(&path, "x\n").unwrap();
    assert!(reader.follow().await.unwrap());
    assert_eq!(texts(&mut reader).await, ["x"]);
    let mut reopened = LineReader::open(&path, at(8), 10).await.unwrap();
    assert_eq!(texts(&mut reopened).await, ["x"]);
}
