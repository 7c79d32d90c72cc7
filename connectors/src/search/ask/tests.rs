//! Asking an index.

use proptest::prelude::*;

use super::super::testing::{BEGUN, ask, found, message, open};
use super::super::{IndexWriter, Query};
use super::*;

fn written(messages: &[Message<'_>]) -> (tempfile::TempDir, IndexWriter) {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = open(folder.path());
    // one segment each, as if they had come one by one
    for message in messages {
        writer.write(std::slice::from_ref(message)).unwrap();
    }
    (folder, writer)
}

fn sequences(writer: &IndexWriter, query: &str, chats: &[&str]) -> Vec<u64> {
    let page = writer.reader().ask(&ask(query, chats)).unwrap();
    page.hits.iter().map(|hit| hit.message.sequence).collect()
}

#[test]
fn words_phrases_beginnings_and_what_is_unwanted() {
    let (_folder, writer) = written(&[
        message("a", 1, "Green tea with milk"),
        message("a", 2, "milk, then green TEA"),
        message("a", 3, "teapot"),
        message("a", 4, "我们去吃饭"),
        message("a", 5, "饭 ... 吃"),
        message("a", 6, "Grüße aus Zürich 🎉"),
    ]);
    for (query, expected) in [
        ("tea", &[2, 1][..]),
        ("milk GREEN", &[2, 1]),
        ("\"green tea\"", &[2, 1]),
        ("\"tea with\"", &[1]),
        ("tea -with", &[2]),
        ("te*", &[3, 2, 1]),
        ("tea -te*", &[]),
        ("coff*", &[]),
        ("tea -coff*", &[2, 1]),
        ("吃饭", &[4]),
        ("吃", &[5, 4]),
        ("grusse", &[]),
        ("gruße zurich", &[6]),
        ("🎉", &[6]),
        ("coffee", &[]),
    ] {
        assert_eq!(sequences(&writer, query, &["a"]), expected, "{query}");
    }
}

#[test]
fn only_the_chats_that_were_asked_for_are_looked_into() {
    let (_folder, writer) =
        written(&[message("a", 1, "tea"), message("b", 2, "tea"), message("c", 3, "tea")]);
    assert_eq!(sequences(&writer, "tea", &["a", "c", "elsewhere"]), [3, 1]);
    assert!(sequences(&writer, "tea", &[]).is_empty());
    // somebody in very many chats
    let many: Vec<String> = (0..10_000).map(|n| format!("chat_{n}")).chain(["b".to_owned()]).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(sequences(&writer, "tea", &many), [2]);
}

#[test]
fn a_page_goes_on_where_the_one_before_ended() {
    let mut messages: Vec<_> =
        (1..=9).map(|at| message(if at % 2 == 0 { "a" } else { "b" }, at, "tea")).collect();
    for message in &mut messages {
        // many of one moment, as in a burst
        message.created_at = Timestamp::from_unix_millis(BEGUN + message.sequence / 4);
    }
    let (_folder, writer) = written(&messages);
    let mut question = Ask { limit: 2, ..ask("tea", &["a", "b"]) };
    let mut all = Vec::new();
    loop {
        let page = writer.reader().ask(&question).unwrap();
        assert!(page.hits.len() <= 2 && all.len() < 9, "no page comes twice");
        all.extend(page.hits.iter().map(|hit| hit.message.sequence));
        let Some(next) = page.next else { break };
        question.after = Some(next.to_string().parse().unwrap());
    }
    assert_eq!(all, [9, 8, 7, 6, 5, 4, 3, 2, 1]);
    let before = Ask { before: Some(Timestamp::from_unix_millis(BEGUN + 1)), ..ask("tea", &["a", "b"]) };
    assert_eq!(found(&writer.reader().ask(&before).unwrap()).len(), 3, "the moment itself is not before it");
    for wrong in ["", "1-2", "1-2-3-4", "1-2-x", "1-2--3", "99999999999999999-0-0"] {
        assert_eq!(wrong.parse::<Cursor>(), Err(NotACursor), "{wrong}");
    }
}

#[test]
fn a_search_that_costs_too_much_is_given_up() {
    let many: String = (0..4000).map(|n| format!("ab{n} ")).collect();
    let (_folder, writer) = written(&[message("a", 1, &many), message("a", 2, "tea")]);
    let refused = writer.reader().ask(&ask("ab*", &["a"])).unwrap_err();
    assert!(matches!(&refused, SearchError::TooManyWords(beginning) if beginning == "ab"), "{refused}");
    assert_eq!(sequences(&writer, "ab12*", &["a"]), [1]);
    let hurried = Ask { patience: Duration::ZERO, ..ask("tea", &["a"]) };
    assert!(matches!(writer.reader().ask(&hurried), Err(SearchError::TooSlow)));
}

#[test]
fn a_hit_says_everything_about_its_message() {
    let said = message("a", 7, "<b>tea</b>");
    let (_folder, writer) = written(std::slice::from_ref(&said));
    let page = writer.reader().ask(&ask("tea", &["a"])).unwrap();
    let snippet = "&lt;b&gt;<mark>tea</mark>&lt;/b&gt;".to_owned();
    assert_eq!(page, Page { hits: vec![Hit { message: said, snippet }], next: None });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever people write and ask: what is found is what a look at every message finds, and nothing breaks.
    #[test]
    fn a_search_finds_what_is_there(
        texts in proptest::collection::vec("[abé字 ]{0,12}", 1..8),
        queries in proptest::collection::vec("-?\"?[abé字 *]{1,6}\"?", 1..8),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = open(folder.path());
        let messages: Vec<_> = (1..).zip(&texts).map(|(at, text)| message("a", at, text)).collect();
        writer.write(&messages).unwrap();
        for text in queries {
            let Ok(query) = Query::parse(&text) else { continue };
            let expected: Vec<u64> = messages.iter().rev()
                .filter(|message| fits(&query, &message.content)).map(|message| message.sequence).collect();
            prop_assert_eq!(sequences(&writer, &text, &["a"]), expected, "{}", text);
        }
    }
}

/// What a query means, the slow way.
fn fits(query: &Query, content: &str) -> bool {
    use super::super::query::Part;
    let words = super::super::words::words_of(content);
    let holds = |part: &Part| match part {
        Part::Word(word) => words.contains(word),
        Part::Phrase(phrase) => words.windows(phrase.len()).any(|window| window == phrase),
        Part::Beginning(beginning) => words.iter().any(|word| word.starts_with(beginning)),
    };
    query.wanted.iter().all(holds) && !query.unwanted.iter().any(holds)
}
