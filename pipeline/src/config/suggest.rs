//! Did you mean …?

/// Longer words are not typing mistakes, and comparing costs the product of both lengths.
const LONGEST_WORD: usize = 64;

/// The most similar candidate, if one is near enough to be meant.
pub(super) fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    if word.len() > LONGEST_WORD {
        return None;
    }
    // One edit in three letters, as rustc does it: `topc` is near `topic`, `foo` is not near `bar`.
    let near = word.chars().count().max(3) / 3;
    let spelling = spelling_of(word);
    candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= LONGEST_WORD)
        .map(|candidate| (strsim::damerau_levenshtein(&spelling, &spelling_of(candidate)), candidate))
        .filter(|(distance, _)| *distance <= near)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `Dead-Letter` and `dead_letter` are the same word in different clothes.
fn spelling_of(word: &str) -> String {
    word.to_lowercase().replace('-', "_")
}

/// ``did you mean `topic`?``, or all there is to choose from if nothing is near and the choice is small.
pub fn help(word: &str, candidates: &[&str]) -> Option<String> {
    match nearest(word, candidates.iter().copied()) {
        Some(candidate) => Some(format!("did you mean `{candidate}`?")),
        None => choice(candidates),
    }
}

/// More than this reads like a dump.
const LONGEST_CHOICE: usize = 12;

fn choice(candidates: &[&str]) -> Option<String> {
    (1..=LONGEST_CHOICE).contains(&candidates.len()).then(|| format!("expected {}", list(candidates, "or")))
}

/// `` `a`, `b` or `c` ``.
pub(super) fn list<S: AsRef<str>>(words: &[S], conjunction: &str) -> String {
    let quoted: Vec<String> = words.iter().map(|word| quote(word.as_ref())).collect();
    match quoted.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((last, rest)) => format!("{} {conjunction} {last}", rest.join(", ")),
    }
}

/// Longest text of the user's that a message repeats.
const LONGEST_QUOTE: usize = 60;

/// A piece of the user's text in a message: cut, and without anything a terminal would act on.
pub(super) fn quote(text: &str) -> String {
    let mut shown: String =
        text.chars().take(LONGEST_QUOTE).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(LONGEST_QUOTE).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        let kinds = ["kafka-publish", "kafka-consume", "filter", "map"];
        assert_eq!(nearest("kafka-pubilsh", kinds), Some("kafka-publish"));
        assert_eq!(nearest("Filter", kinds), Some("filter"));
        assert_eq!(nearest("kafka_consume", kinds), Some("kafka-consume"));
        assert_eq!(nearest("webhook", kinds), None);
        assert_eq!(nearest(&"f".repeat(1 << 20), kinds), None);
    }

    #[test]
    fn without_a_near_word_the_choice_is_shown() {
        assert_eq!(help("x", &["stop", "drop"]).as_deref(), Some("expected `stop` or `drop`"));
        assert_eq!(help("stpo", &["stop", "drop"]).as_deref(), Some("did you mean `stop`?"));
        assert_eq!(help("x", &[]), None);
    }

    #[test]
    fn quotes_are_short_and_harmless() {
        assert_eq!(quote("a\x1b[31m"), "`a\u{fffd}[31m`");
        assert_eq!(quote(&"é".repeat(100)).chars().count(), 63);
    }
}
