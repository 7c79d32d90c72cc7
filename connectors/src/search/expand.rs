//! From a [`Query`] to what Tantivy looks up.

use std::collections::BTreeSet;

use tantivy::query::{
    BooleanQuery, EmptyQuery, EnableScoring, Occur, PhraseQuery, Query as TantivyQuery, TermQuery,
    TermSetQuery, Weight,
};
use tantivy::schema::IndexRecordOption;
use tantivy::{Searcher, Term};

use super::SearchError;
use super::query::{Part, Query};
use super::schema::Fields;

/// Words that a beginning may stand for. Each is a list to read; more of them are no search any more.
const MOST_EXPANDED: usize = 2000;

/// Why an expansion failed.
pub(super) enum NotExpanded {
    Refused(SearchError),
    Failed(tantivy::TantivyError),
}

impl From<tantivy::TantivyError> for NotExpanded {
    fn from(error: tantivy::TantivyError) -> Self {
        Self::Failed(error)
    }
}

impl From<std::io::Error> for NotExpanded {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// What Tantivy looks up. What is unwanted stands apart: Tantivy 0.27 leaves documents out by seeking backwards in
/// phrases, which they cannot.
pub(super) struct Expanded {
    pub(super) wanted: Box<dyn Weight>,
    pub(super) unwanted: Vec<Box<dyn Weight>>,
}

/// Every message of these chats that fits the query.
pub(super) fn expand<'c>(
    query: &Query,
    chats: impl IntoIterator<Item = &'c str>,
    searcher: &Searcher,
    fields: &Fields,
) -> Result<Expanded, NotExpanded> {
    let mut wanted: Vec<(Occur, Box<dyn TantivyQuery>)> = Vec::new();
    for part in &query.wanted {
        wanted.push((Occur::Must, clause(part, searcher, fields)?));
    }
    // One union over the lists of all chats: what it costs is what the caller has in them, not what there is.
    let chats = TermSetQuery::new(chats.into_iter().map(|chat| fields.chat_term(chat)));
    wanted.push((Occur::Must, Box::new(chats)));
    let weight = |query: &dyn TantivyQuery| query.weight(EnableScoring::disabled_from_searcher(searcher));
    let mut unwanted = Vec::new();
    for part in &query.unwanted {
        unwanted.push(weight(&*clause(part, searcher, fields)?)?);
    }
    Ok(Expanded { wanted: weight(&BooleanQuery::new(wanted))?, unwanted })
}

fn clause(part: &Part, searcher: &Searcher, fields: &Fields) -> Result<Box<dyn TantivyQuery>, NotExpanded> {
    Ok(match part {
        Part::Word(word) => Box::new(TermQuery::new(fields.word_term(word), IndexRecordOption::Basic)),
        Part::Phrase(words) => {
            Box::new(PhraseQuery::new(words.iter().map(|word| fields.word_term(word)).collect()))
        }
        Part::Beginning(beginning) => match words_with(beginning, searcher, fields)? {
            none if none.is_empty() => Box::new(EmptyQuery),
            words => Box::new(TermSetQuery::new(words)),
        },
    })
}

/// Every word of the index that begins so.
fn words_with(beginning: &str, searcher: &Searcher, fields: &Fields) -> Result<Vec<Term>, NotExpanded> {
    let mut words = BTreeSet::new();
    for segment in searcher.segment_readers() {
        let inverted = segment.inverted_index(fields.content)?;
        let mut stream = inverted.terms().range().ge(beginning).into_stream()?;
        while stream.advance() && stream.key().starts_with(beginning.as_bytes()) {
            if !words.contains(stream.key()) {
                words.insert(stream.key().to_vec());
            }
            if words.len() > MOST_EXPANDED {
                return Err(NotExpanded::Refused(SearchError::TooManyWords(beginning.to_owned())));
            }
        }
    }
    let terms = words.iter().filter_map(|word| std::str::from_utf8(word).ok());
    Ok(terms.map(|word| fields.word_term(word)).collect())
}
