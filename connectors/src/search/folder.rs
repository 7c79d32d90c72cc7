//! A folder with an index in it.

use std::path::Path;

use tantivy::directory::MmapDirectory;
use tantivy::tokenizer::TextAnalyzer;
use tantivy::{Index, IndexSettings};

use super::SearchError;
use super::schema::{Fields, WORDS, schema};
use super::words::Words;

/// Opens the index, or makes an empty one where there is none.
pub(super) fn open_or_create(folder: &Path) -> Result<(Index, Fields), SearchError> {
    let failed = |error| SearchError::of("open", folder, error);
    if let Some(opened) = open(folder)? {
        return Ok(opened);
    }
    let directory = MmapDirectory::open(folder).map_err(|error| failed(error.into()))?;
    let (schema, fields) = schema();
    let index = Index::create(directory, schema, IndexSettings::default()).map_err(failed)?;
    Ok((with_words(index), fields))
}

/// Opens the index if there is one.
pub(super) fn open(folder: &Path) -> Result<Option<(Index, Fields)>, SearchError> {
    let failed = |error| SearchError::of("open", folder, error);
    let directory = MmapDirectory::open(folder).map_err(|error| failed(error.into()))?;
    if !Index::exists(&directory).map_err(|error| failed(error.into()))? {
        return Ok(None);
    }
    let index = Index::open(directory).map_err(failed)?;
    let (schema, fields) = schema();
    if index.schema() != schema {
        return Err(SearchError::OtherVersion { folder: folder.to_owned() });
    }
    Ok(Some((with_words(index), fields)))
}

fn with_words(index: Index) -> Index {
    index.tokenizers().register(WORDS, TextAnalyzer::from(Words));
    index
}
