//! What generations there are, and taking them away.

use courant_connectors::model::Timestamp;
use serde::{Deserialize, Serialize};

use super::receipt::{Receipt, State};
use super::{Engine, Error, Result};

/// One generation of a pipeline's store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    pub pipeline: String,
    pub generation: String,
    pub is_live: bool,
    /// None for a generation that its pipeline made by itself.
    pub state: Option<State>,
    pub began_at: Option<Timestamp>,
    pub records: u64,
    pub differences: Option<u64>,
}

impl Engine<'_> {
    /// Every generation of every pipeline that has any, or of one; newest last.
    pub async fn list(&self, pipeline: Option<&str>) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let named = |topology: &&courant_pipeline::config::Topology| {
            pipeline.is_none_or(|pipeline| *topology.name == *pipeline)
        };
        for topology in self.topologies.iter().filter(named) {
            let generations = self.generations(&topology.name)?;
            let current = generations.current().await?;
            for generation in generations.list().await? {
                let receipt = Receipt::load(&generation).await?;
                listed.push(Listed {
                    pipeline: topology.name.to_string(),
                    generation: generation.name().to_owned(),
                    is_live: current.as_ref() == Some(&generation),
                    state: receipt.as_ref().map(|receipt| receipt.state),
                    began_at: receipt.as_ref().map(|receipt| receipt.began_at),
                    records: receipt.as_ref().map_or(0, |receipt| receipt.records.sum()),
                    differences: receipt.and_then(|receipt| Some(receipt.comparison?.differences())),
                });
            }
        }
        Ok(listed)
    }

    /// The receipt of a generation; of the newest that has one if none is named.
    pub async fn show(&self, pipeline: &str, generation: Option<&str>) -> Result<Receipt> {
        let Some(wanted) = generation else {
            return Ok(self.newest(pipeline, "shown", |_| true).await?.0);
        };
        let unknown =
            || Error::UnknownGeneration { pipeline: pipeline.to_owned(), generation: wanted.to_owned() };
        let found = self.generations(pipeline)?.find(wanted).await?.ok_or_else(unknown)?;
        Receipt::load(&found).await?.ok_or_else(unknown)
    }

    /// Removes a generation for good; the live one is refused.
    pub async fn discard(&self, pipeline: &str, generation: &str) -> Result<()> {
        let generations = self.generations(pipeline)?;
        let unknown =
            || Error::UnknownGeneration { pipeline: pipeline.to_owned(), generation: generation.to_owned() };
        let found = generations.find(generation).await?.ok_or_else(unknown)?;
        generations.discard(&found).await?;
        tracing::info!(pipeline, generation, "discarded");
        Ok(())
    }
}
