//! What people type into a search field.
//!
//! Words must all be in a message, in any order; `"words in quotes"` side by side; `begin*` stands for every word that
//! begins so; `-word` must not be there. Nothing else has a meaning, so what is pasted from anywhere is a search and
//! not a mistake. How much one search may ask for is bounded here, before anything is looked up.
//!
//! Rejected: Tantivy's own language, whose ranges, regular expressions and nesting let anybody write a search that keeps a
//! server busy, and in which a smiley is a syntax error.

use super::words::words_of;

const LONGEST_QUERY: usize = 256;
/// Enough for a sentence that somebody remembers.
const MOST_WORDS: usize = 32;
/// A shorter beginning stands for half of the dictionary.
const SHORTEST_BEGINNING: usize = 2;

/// A search that can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// All of these; at least one.
    pub(super) wanted: Vec<Part>,
    /// None of these.
    pub(super) unwanted: Vec<Part>,
}

/// One thing that a message holds or does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Word(String),
    /// Words side by side; at least two.
    Phrase(Vec<String>),
    /// Any word that begins so.
    Beginning(String),
}

/// What is wrong with what was typed, for whoever typed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAQuery {
    #[error("a search has at most {LONGEST_QUERY} bytes")]
    TooLong,
    #[error("a search has at most {MOST_WORDS} words")]
    TooManyWords,
    #[error("there is no word to search for")]
    NoWord,
    #[error("a search needs a word that is wanted, beside those after a minus")]
    OnlyUnwanted,
    #[error("a quotation mark is not closed")]
    OpenQuote,
    #[error(
        "'{0}*' stands for too many words; write at least {SHORTEST_BEGINNING} characters before the star"
    )]
    ShortBeginning(String),
}

impl Query {
    pub fn parse(text: &str) -> Result<Self, NotAQuery> {
        if text.len() > LONGEST_QUERY {
            return Err(NotAQuery::TooLong);
        }
        let mut query = Self { wanted: Vec::new(), unwanted: Vec::new() };
        let (mut rest, mut words) = (text.trim_start(), 0);
        while !rest.is_empty() {
            let (is_unwanted, typed, after) = next_typed(rest)?;
            rest = after.trim_start();
            for part in parts_of(typed)? {
                words += part.words();
                (if is_unwanted { &mut query.unwanted } else { &mut query.wanted }).push(part);
            }
        }
        match (query.wanted.is_empty(), query.unwanted.is_empty()) {
            _ if words > MOST_WORDS => Err(NotAQuery::TooManyWords),
            (true, true) => Err(NotAQuery::NoWord),
            (true, false) => Err(NotAQuery::OnlyUnwanted),
            (false, _) => Ok(query),
        }
    }

    /// Whether a word of a message is one of those that are searched for.
    pub(super) fn wants(&self, word: &str) -> bool {
        self.wanted.iter().any(|part| match part {
            Part::Word(wanted) => wanted == word,
            Part::Phrase(words) => words.iter().any(|wanted| wanted == word),
            Part::Beginning(beginning) => word.starts_with(&**beginning),
        })
    }
}

impl Part {
    fn words(&self) -> usize {
        if let Self::Phrase(words) = self { words.len() } else { 1 }
    }
}

/// Something between spaces, or between quotation marks.
#[derive(Clone, Copy)]
enum Typed<'a> {
    Plain(&'a str),
    Quoted(&'a str),
}

/// What comes next, whether a minus is before it, and what is left.
fn next_typed(text: &str) -> Result<(bool, Typed<'_>, &str), NotAQuery> {
    let (is_unwanted, text) = match text.strip_prefix('-') {
        Some(rest) if !rest.is_empty() && !rest.starts_with([' ', '-']) => (true, rest),
        _ => (false, text),
    };
    if let Some(quoted) = text.strip_prefix('"') {
        let end = quoted.find('"').ok_or(NotAQuery::OpenQuote)?;
        return Ok((is_unwanted, Typed::Quoted(&quoted[..end]), &quoted[end + 1..]));
    }
    let end = text.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(text.len());
    Ok((is_unwanted, Typed::Plain(&text[..end]), &text[end..]))
}

/// What is typed without spaces can be several words all the same: `don't`, `example.com`, 吃饭.
fn parts_of(typed: Typed<'_>) -> Result<Vec<Part>, NotAQuery> {
    let (text, is_beginning) = match typed {
        Typed::Quoted(text) => (text, false),
        Typed::Plain(text) => text.strip_suffix('*').map_or((text, false), |text| (text, true)),
    };
    let mut words = words_of(text);
    let mut parts = Vec::new();
    // Only if the star follows a word: `***` is nothing.
    if is_beginning && let Some(beginning) = words.pop() {
        if beginning.chars().count() < SHORTEST_BEGINNING {
            return Err(NotAQuery::ShortBeginning(beginning));
        }
        parts.push(Part::Beginning(beginning));
    }
    match words.len() {
        0 => {}
        1 => parts.extend(words.pop().map(Part::Word)),
        _ => parts.push(Part::Phrase(words)),
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn word(word: &str) -> Part {
        Part::Word(word.to_owned())
    }

    fn phrase(words: &[&str]) -> Part {
        Part::Phrase(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn what_is_typed_means_what_it_looks_like() {
        for (text, wanted, unwanted) in [
            ("Hello  WORLD", vec![word("hello"), word("world")], vec![]),
            ("\"hello world\" -bye", vec![phrase(&["hello", "world"])], vec![word("bye")]),
            ("don't 吃饭", vec![phrase(&["don", "t"]), phrase(&["吃", "饭"])], vec![]),
            ("tea hel*", vec![word("tea"), Part::Beginning("hel".into())], vec![]),
            ("ice-crea*", vec![Part::Beginning("crea".into()), word("ice")], vec![]),
            ("a -\"b c\"d", vec![word("a"), word("d")], vec![phrase(&["b", "c"])]),
            (
                "- a -- :-) *** AND title:[1 TO 2]~",
                vec![word("a"), word("and"), phrase(&["title", "1"]), word("to"), word("2")],
                vec![],
            ),
            ("é\"x\"", vec![word("e"), word("x")], vec![]),
        ] {
            assert_eq!(Query::parse(text), Ok(Query { wanted, unwanted }), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_searched_for_says_why() {
        let many = "a ".repeat(33);
        for (text, why) in [
            ("", NotAQuery::NoWord),
            ("  … ?! \"\"", NotAQuery::NoWord),
            ("-tea", NotAQuery::OnlyUnwanted),
            ("\"tea", NotAQuery::OpenQuote),
            ("t*", NotAQuery::ShortBeginning("t".into())),
            (&"x".repeat(257), NotAQuery::TooLong),
            (&many, NotAQuery::TooManyWords),
        ] {
            assert_eq!(Query::parse(text), Err(why), "{text}");
        }
    }

    proptest! {
        #[test]
        fn anything_can_be_typed(text in any::<String>()) {
            if let Ok(query) = Query::parse(&text) {
                assert!(!query.wanted.is_empty());
                let words: usize = query.wanted.iter().chain(&query.unwanted).map(Part::words).sum();
                assert!(words <= MOST_WORDS);
            }
        }
    }
}
