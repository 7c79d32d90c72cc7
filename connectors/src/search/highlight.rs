//! The part of a message that shows why it was found, as HTML.
//!
//! What people wrote is escaped; the only elements are `<mark>` around the words that were searched for.

use std::ops::Range;

use super::query::Query;
use super::words::each_word;

/// Bytes of a message that are shown, about.
const SHOWN: usize = 160;
/// Bytes that are shown before the first word that was found, about.
const BEFORE: usize = 40;

/// The part of `content` with the most of the words that `query` wants.
pub(super) fn highlight(query: &Query, content: &str) -> String {
    let mut found: Vec<Range<usize>> = Vec::new();
    each_word(content, |word, place| {
        if query.wants(word) {
            found.push(place);
        }
    });
    let shown = window(&found, content);
    let mut html = String::with_capacity(SHOWN + 32);
    if shown.start > 0 {
        html.push('…');
    }
    let mut at = shown.start;
    let visible = found.iter().filter(|place| place.start >= shown.start && place.end <= shown.end);
    for place in visible {
        escape(&content[at..place.start], &mut html);
        html.push_str("<mark>");
        escape(&content[place.clone()], &mut html);
        html.push_str("</mark>");
        at = place.end;
    }
    escape(&content[at..shown.end], &mut html);
    if shown.end < content.len() {
        html.push('…');
    }
    html
}

/// From a little before the word after which the most are found, at spaces where there are any.
fn window(found: &[Range<usize>], content: &str) -> Range<usize> {
    if content.len() <= SHOWN {
        return 0..content.len();
    }
    let mut best = (0, 0);
    let mut end = 0;
    for (start, place) in found.iter().enumerate() {
        let limit = place.start + SHOWN - BEFORE;
        while end < found.len() && found[end].end <= limit {
            end += 1;
        }
        if end.saturating_sub(start) > best.0 {
            best = (end - start, place.start);
        }
    }
    let start = character_at(content, best.1.saturating_sub(BEFORE));
    // A cut word looks like another word: begin after the space, if there is one before what was found.
    let start = match content[start..best.1].find(char::is_whitespace) {
        Some(space) if start > 0 => best.1 - content[start + space..best.1].trim_start().len(),
        _ => start,
    };
    let end = character_at(content, (start + SHOWN).min(content.len()));
    // A found word is not cut off.
    let end =
        found.iter().find(|place| place.start < end && end < place.end).map_or(end, |place| place.start);
    start..end.max(start)
}

/// Where the character begins that this byte is in.
fn character_at(text: &str, byte: usize) -> usize {
    (0..=byte).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn escape(text: &str, into: &mut String) {
    for c in text.chars() {
        match c {
            '&' => into.push_str("&amp;"),
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            '"' => into.push_str("&quot;"),
            '\'' => into.push_str("&#39;"),
            c => into.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(query: &str, content: &str) -> String {
        highlight(&Query::parse(query).unwrap(), content)
    }

    #[test]
    fn what_was_found_is_marked_and_the_rest_is_escaped() {
        assert_eq!(
            shown("tea", "<script>alert('x')</script> Tea & \"teas\""),
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; <mark>Tea</mark> &amp; &quot;teas&quot;"
        );
        assert_eq!(shown("caf*", "Café, cafe"), "<mark>Café</mark>, <mark>cafe</mark>");
        assert_eq!(shown("吃饭 -去", "我们去吃饭"), "我们去<mark>吃</mark><mark>饭</mark>");
        assert_eq!(shown("x", ""), "");
    }

    #[test]
    fn a_long_message_shows_the_part_with_the_most_of_it() {
        let content = format!("tea {}green tea with milk {}", "word ".repeat(100), "end ".repeat(100));
        let html = shown("green tea milk", &content);
        assert!(html.starts_with('…') && html.ends_with('…'), "{html}");
        assert!(
            html.contains("word <mark>green</mark> <mark>tea</mark> with <mark>milk</mark> end"),
            "{html}"
        );
        assert!(html.starts_with("…word "), "no cut word: {html}");
        assert!(html.len() < 2 * SHOWN + 30, "{html}");
        let unbroken = "字".repeat(1000);
        assert!(shown("字", &unbroken).len() < SHOWN * 8);
    }

    proptest! {
        /// Whatever was written and searched for: without the marks it is escaped text of the message.
        #[test]
        fn nothing_but_marks_is_html(content in "(?s)[a-c<&\"' é字🎉…]{0,400}", query in "[a-c字]{1,3}\\*?") {
            let Ok(query) = Query::parse(&query) else { return Ok(()) };
            let html = highlight(&query, &content);
            let bare = html.replace("<mark>", "").replace("</mark>", "");
            prop_assert!(!bare.contains(['<', '>', '"', '\'']), "{}", html);
            let text = bare.replace("&lt;", "<").replace("&quot;", "\"").replace("&#39;", "'").replace("&amp;", "&");
            let inner = text.strip_prefix('…').filter(|inner| content.contains(inner.trim_end_matches('…'))).unwrap_or(&text);
            prop_assert!(content.contains(inner.strip_suffix('…').filter(|cut| content.contains(cut)).unwrap_or(inner)), "{}", html);
        }
    }
}
