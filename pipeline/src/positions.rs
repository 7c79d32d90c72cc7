//! Where pipelines remember how far they have read, for sources that cannot do it themselves.

use async_trait::async_trait;

use crate::error::StageError;
use crate::stage::Positions;

/// What a pipeline remembers of its source.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SavedPositions {
    /// The source's identity; positions of another source are not good for this one.
    pub source: String,
    pub positions: Positions,
}

/// Durable positions by pipeline name.
#[async_trait]
pub trait PositionStore: Send + Sync {
    async fn load(&self, pipeline: &str) -> Result<Option<SavedPositions>, StageError>;

    /// Returns once durable.
    async fn save(&self, pipeline: &str, saved: &SavedPositions) -> Result<(), StageError>;
}
