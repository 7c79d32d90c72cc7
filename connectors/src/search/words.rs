//! What counts as a word, in messages and in what is searched for alike.
//!
//! Runs of ASCII letters and digits are words as they are. Everything else is cut by the rules of Unicode (UAX #29),
//! which keep the signs of Hindi or Arabic with their letters, and make a word of each character where people write
//! without spaces: Chinese, Japanese, Thai. There a search for several characters is a search for them side by side, which
//! finds words without a dictionary. Words are compared in lower case, without the accents of European scripts and
//! without differences of width: `cafe` finds `Café`, `ａ` is `a`. An emoji is a word.
//!
//! Rejected: n-grams, which find parts of words in any language and make the index several times as large and as slow to
//! write; people can ask for the beginning of a word. Rejected: stemming, which needs to know the language of a message.

use std::ops::Range;

use tantivy::tokenizer::{Token, TokenStream, Tokenizer};
use unicode_normalization::UnicodeNormalization as _;
use unicode_segmentation::UnicodeSegmentation as _;

/// Longer words are cut: they are keys and encoded files, which nobody types, and would fill the dictionary.
const LONGEST_WORD: usize = 64;

/// Cuts texts into words, for Tantivy.
#[derive(Debug, Clone, Default)]
pub(super) struct Words;

impl Tokenizer for Words {
    type TokenStream<'a> = WordStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> WordStream<'a> {
        WordStream { text, rest: 0, run: 0..0, token: Token::default() }
    }
}

/// The words of a text, with their places in it.
pub(super) struct WordStream<'a> {
    text: &'a str,
    /// Where to look for the next run.
    rest: usize,
    /// What is left of a run that is not ASCII.
    run: Range<usize>,
    token: Token,
}

/// Every word of a text as it is compared, with its place.
pub(super) fn each_word(text: &str, mut each: impl FnMut(&str, Range<usize>)) {
    let mut words = Words;
    let mut stream = words.token_stream(text);
    while stream.advance() {
        each(&stream.token.text, stream.token.offset_from..stream.token.offset_to);
    }
}

/// The words of a text as they are compared.
pub(super) fn words_of(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    each_word(text, |word, _| words.push(word.to_owned()));
    words
}

impl WordStream<'_> {
    /// The next run of characters that can be in words, from `rest` on.
    fn next_run(&mut self) -> Option<Range<usize>> {
        let bytes = self.text.as_bytes();
        let mut at = self.rest;
        while at < bytes.len() && !is_in_word(self.text, at) {
            at += width(bytes[at]);
        }
        let start = at;
        while at < bytes.len() && is_in_word(self.text, at) {
            at += width(bytes[at]);
        }
        self.rest = at;
        (start < at).then_some(start..at)
    }

    fn set(&mut self, word: Range<usize>) {
        let token = &mut self.token;
        token.position = token.position.wrapping_add(1);
        (token.offset_from, token.offset_to) = (word.start, word.end);
        token.text.clear();
        let word = &self.text[word];
        if word.is_ascii() {
            token.text.push_str(&word[..word.len().min(LONGEST_WORD)]);
            token.text.make_ascii_lowercase();
        } else {
            fold(word, &mut token.text);
        }
    }
}

impl TokenStream for WordStream<'_> {
    fn advance(&mut self) -> bool {
        loop {
            if self.run.is_empty() {
                let Some(run) = self.next_run() else { return false };
                if self.text[run.clone()].is_ascii() {
                    self.set(run);
                    return true;
                }
                self.run = run;
            }
            let left = &self.text[self.run.clone()];
            // Cut piece by piece: the rules look at no more than the next piece, and need nothing to be collected.
            let piece = left.split_word_bounds().next().unwrap_or(left).len();
            let word = self.run.start..self.run.start + piece;
            self.run.start = word.end;
            if self.text[word.clone()].chars().any(|c| c.is_alphanumeric() || is_emoji(c)) {
                self.set(word);
                return true;
            }
        }
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.token
    }
}

/// Whether the character at a byte can be part of a word. Whatever is not ASCII can, apart from dashes and quotation
/// marks: Unicode would keep `l’été` whole, and nobody would find `été`.
fn is_in_word(text: &str, at: usize) -> bool {
    let byte = text.as_bytes()[at];
    if byte.is_ascii() {
        return byte.is_ascii_alphanumeric();
    }
    // U+2010 to U+205F, in UTF-8.
    byte != 0xe2 || !matches!(&text.as_bytes()[at + 1..at + 3], [0x80, 0x90..=0xbf] | [0x81, 0x80..=0x9f])
}

/// Bytes of the character that begins with this one.
fn width(first: u8) -> usize {
    match first {
        ..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
    }
}

fn is_emoji(c: char) -> bool {
    matches!(c, '\u{2600}'..='\u{27bf}' | '\u{1f300}'..='\u{1faff}')
}

/// Lower case, without accents of European scripts, without differences of width.
fn fold(word: &str, into: &mut String) {
    let is_accent = |c: &char| matches!(c, '\u{300}'..='\u{36f}');
    let is_variant = |c: &char| matches!(c, '\u{fe00}'..='\u{fe0f}');
    let folded = word.nfkd().filter(|c| !is_accent(c) && !is_variant(c)).flat_map(char::to_lowercase).nfc();
    for c in folded {
        if into.len() + c.len_utf8() > LONGEST_WORD {
            return;
        }
        into.push(c);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_of_many_languages_are_found() {
        for (text, words) in [
            ("Hello, World! 42", &["hello", "world", "42"][..]),
            ("don't stop_me example.com", &["don", "t", "stop", "me", "example", "com"]),
            ("Café CAFE\u{301} naïve Ёлка Αθήνα", &["cafe", "cafe", "naive", "елка", "αθηνα"]),
            ("l’été – “où”", &["l", "ete", "ou"]),
            ("हिन्दी में", &["हिन्दी", "में"]),
            ("مرحبا بالعالم", &["مرحبا", "بالعالم"]),
            ("我们去吃饭。ＡＢＣ", &["我", "们", "去", "吃", "饭", "abc"]),
            ("東京タワー", &["東", "京", "タワー"]),
            ("한국어 검색", &["한국어", "검색"]),
            ("party 🎉🎉 time ❤\u{fe0f}", &["party", "🎉", "🎉", "time", "❤"]),
            ("  \n\t…—!?", &[]),
            ("", &[]),
        ] {
            assert_eq!(words_of(text), words, "{text}");
        }
    }

    #[test]
    fn a_word_without_end_is_cut() {
        assert_eq!(words_of(&"a".repeat(5000)), ["a".repeat(LONGEST_WORD)]);
        let cut = words_of(&"é".repeat(5000));
        assert_eq!(cut, ["e".repeat(LONGEST_WORD)]);
    }

    proptest! {
        /// Whatever is written: places are in order and on characters, and words are found again by themselves.
        #[test]
        fn any_text_has_words_with_places(text in any::<String>()) {
            let mut end = 0;
            each_word(&text, |word, place| {
                assert!(place.start >= end && text.get(place.clone()).is_some());
                assert!(word.len() <= LONGEST_WORD);
                end = place.end;
            });
        }
    }
}
