//! Where a stage keeps what it makes from history.
//!
//! A process offers its stages a [`DerivedHome`]: the live generation of their pipeline, or in a rebuild the generation
//! that is being made. A stage asks for its folder when it is built and gets it when it opens, so it does not know which
//! of the two it works for, and a rebuild needs no other stage.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use courant_connectors::files::generations::{Generation, Generations};
use courant_connectors::files::keyed::KeyedTable;
use courant_pipeline::StageError;
use courant_pipeline::spec::BuildContext;

use crate::host::file_error;

/// The folder of everything that pipelines make from history.
#[derive(Debug, Clone)]
pub struct DerivedHome {
    root: PathBuf,
    /// What a rebuild writes in place of the live generation.
    shadow: Option<Generation>,
}

impl DerivedHome {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), shadow: None }
    }

    /// The same for a rebuild: whatever runs with it writes this generation.
    #[must_use]
    pub fn writing(&self, shadow: Generation) -> Self {
        Self { shadow: Some(shadow), ..self.clone() }
    }

    pub fn generations(&self, pipeline: &str) -> Result<Generations, StageError> {
        Generations::of(&self.root, pipeline).map_err(|error| file_error("find the derived store", error))
    }
}

/// A stage's own folder in its pipeline's generation.
#[derive(Debug, Clone)]
pub struct StageFolder {
    home: Option<Arc<DerivedHome>>,
    pipeline: String,
    stage: String,
}

impl StageFolder {
    /// Does no I/O.
    pub fn of(context: &BuildContext<'_>) -> Self {
        let (pipeline, stage) = (context.pipeline.to_owned(), context.stage.to_owned());
        Self { home: context.services.get(), pipeline, stage }
    }

    /// Whether it is in the live generation, and not in one that a rebuild is making.
    pub fn is_live(&self) -> bool {
        self.home.as_ref().is_some_and(|home| home.shadow.is_none())
    }

    /// The folder, created if it is missing.
    pub async fn open(&self) -> Result<PathBuf, StageError> {
        let failed = |error| file_error("open the derived store", error);
        let Some(home) = &self.home else {
            return Err(StageError::fatal("open the derived store", "this process keeps no derived stores"));
        };
        let generation = match &home.shadow {
            Some(shadow) => shadow.clone(),
            None => home.generations(&self.pipeline)?.current_or_first().await.map_err(failed)?,
        };
        generation.stage_folder(&self.stage).await.map_err(failed)
    }
}

/// The live tables of a process, by pipeline and stage: for those who look something up.
#[derive(Default)]
pub struct OpenTables(Mutex<BTreeMap<(String, String), KeyedTable>>);

impl OpenTables {
    pub(crate) fn show(&self, place: (String, String), table: KeyedTable) {
        self.tables().insert(place, table);
    }

    pub(crate) fn hide(&self, place: &(String, String)) {
        self.tables().remove(place);
    }

    /// A pipeline's table with the name of its stage; of the only one if no stage is named.
    pub fn find(&self, pipeline: &str, stage: Option<&str>) -> Result<(String, KeyedTable), String> {
        let tables = self.tables();
        let of_pipeline = tables.iter().filter(|((owner, _), _)| owner == pipeline);
        let mut named = of_pipeline.filter(|((_, name), _)| stage.is_none_or(|stage| stage == name));
        match (named.next(), named.next()) {
            (Some(((_, name), table)), None) => Ok((name.clone(), table.clone())),
            (Some(_), Some(_)) => Err(format!("pipeline `{pipeline}` has several tables; name its stage")),
            (None, _) => {
                let open: Vec<_> = tables.keys().map(|(owner, name)| format!("{owner}/{name}")).collect();
                Err(format!("no such table is open; open are: {}", open.join(", ")))
            }
        }
    }

    fn tables(&self) -> MutexGuard<'_, BTreeMap<(String, String), KeyedTable>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use courant_pipeline::Services;

    use super::*;

    #[tokio::test]
    async fn a_rebuild_writes_beside_what_is_live() {
        let root = tempfile::tempdir().unwrap();
        let home = DerivedHome::new(root.path());
        let folder = |home: DerivedHome| {
            let services = Services::default().with(Arc::new(home));
            let context = BuildContext { pipeline: "search", stage: "search-index", services: &services };
            StageFolder::of(&context)
        };
        let live = folder(home.clone()).open().await.unwrap();
        let shadow = home.generations("search").unwrap().begin().await.unwrap();
        let rebuilt = folder(home.writing(shadow.clone())).open().await.unwrap();
        assert_ne!(live, rebuilt);
        assert_eq!(rebuilt, shadow.folder().join("search-index"));
        assert!(!folder(home.writing(shadow)).is_live() && folder(home.clone()).is_live());
        assert_eq!(folder(home).open().await.unwrap(), live);
    }

    #[tokio::test]
    async fn without_a_home_a_stage_can_be_built_but_not_opened() {
        let services = Services::default();
        let context = BuildContext { pipeline: "p", stage: "s", services: &services };
        let error = StageFolder::of(&context).open().await.unwrap_err();
        assert!(error.to_string().contains("keeps no derived stores"), "{error}");
    }
}
