//! Files that nobody would write by hand.

use super::{NO_ENV, env, load, loader, refused, refused_at};

#[test]
fn a_syntax_error_has_a_position() {
    let expected = "\
error: invalid basic string, expected `\"`
 --> pipelines.toml:2:12
  |
2 | listen = \"é
  |            ^
";
    assert_eq!(refused("[edge]\nlisten = \"é\n"), expected);
}

#[test]
fn a_syntax_error_shows_no_secret() {
    let found = refused("[edge]\nsession_secret = \"hunter2\n");
    assert!(!found.contains("hunter2"), "{found}");
}

#[test]
fn unicode_and_crlf_columns() {
    let text = "[edge]\r\nlisten = 'ü' # ü\r\nworkers = 'ß'\r\n";
    let found = refused(text);
    assert!(found.contains("pipelines.toml:3:11"), "{found}");
    assert!(found.contains("\n3 | workers = 'ß'\n  |           ^^^\n"), "{found:?}");
    // A byte order mark is not a column.
    assert_eq!(refused_at("\u{feff}edge.x = 1"), ["1:6 unknown key `x`"]);
}

#[test]
fn deep_nesting_is_refused_and_does_not_overflow() {
    for text in [
        format!("a = {}", "[".repeat(100_000)),
        format!("{} = 1", vec!["a"; 100_000].join(".")),
        format!("[{}]", vec!["a"; 100_000].join(".")),
        format!("a = {}1{}", "{ b = ".repeat(100_000), " }".repeat(100_000)),
    ] {
        assert!(load(&text).is_err());
    }
    let deep = format!("edge.x = {}1{}", "[".repeat(70), "]".repeat(70));
    assert_eq!(refused_at(&deep), ["1:6 unknown key `x`"]);
    let variable = format!("COURANT_EDGE{}", "__A".repeat(10_000));
    let found = loader().load_str("x.toml", "", env(&[(&variable, "1")])).err().unwrap();
    assert!(found.to_string().contains("is not a name of a setting"));
}

#[test]
fn a_line_of_a_megabyte_is_shown_in_part() {
    let found =
        refused(&format!("edge.listen = [{}]\nedge.{} = 1", "'x', ".repeat(1 << 18), "y".repeat(1 << 20)));
    assert!(found.contains("`listen` must be a string, not an array"));
    assert!(found.len() < 4000, "{} bytes", found.len());
}

#[test]
fn a_hundred_thousand_mistakes_are_not_all_shown() {
    let found = load(&format!("edge.origins = [{}]", "1, ".repeat(100_000))).err().unwrap();
    assert_eq!(found.0.len(), 1001);
    assert_eq!(found.0[1000].message, "99000 more are not shown");
}

#[test]
fn a_pipeline_of_a_hundred_thousand_stages_is_refused_quickly() {
    let text = format!("[[pipeline]]\nname = 'p'\nstage = [{}]", "{ kind = 'generate' }, ".repeat(100_000));
    assert!(load(&text).err().unwrap().to_string().contains("at most 1000 stages"));
}

#[test]
fn no_broken_version_of_a_file_is_too_broken() {
    let text = super::mistakes::TEXT;
    for (at, c) in text.char_indices() {
        for with in ["", "\""] {
            let broken = format!("{}{with}{}", &text[..at], &text[at + c.len_utf8()..]);
            assert!(load(&broken).is_err());
        }
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_answered(text in "(\\[\\[pipeline(\\.stage)?\\]\\]|[a-z=\\[\\]{}'\"\n\r. 0-9#,é]|kind = '|name = '){0,60}") {
        let _ = load(&text).map_err(|found| found.to_string());
    }
}

#[test]
fn bytes_that_are_not_text_have_a_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.toml");
    std::fs::write(&path, b"a = 1\nb = '\xff'\n").unwrap();
    let found = loader().load(&path, NO_ENV).err().unwrap();
    assert_eq!(super::places(&found)[0], "2:6 the file is not UTF-8");
    assert!(loader().load(folder.path(), NO_ENV).err().unwrap().to_string().contains("not a plain file"));
}
