//! Records as a source gives them, with their positions, for stages that keep what they have taken.

use std::path::Path;
use std::sync::Arc;

use courant_pipeline::spec::{Built, Part};
use courant_pipeline::stage::{Partition, ReadBatch};
use courant_pipeline::{Batch, Record, Services, Stage, StageSpec};
use serde_json::Value;

use crate::derived::DerivedHome;

/// A stage that keeps its things below `root`, open.
pub(crate) async fn open(spec: &StageSpec, params: Value, root: &Path) -> Arc<dyn Stage> {
    let Part::Stage(stage) = built(spec, params, root).part else { panic!("`{}` is a source", spec.kind) };
    stage.open().await.unwrap();
    stage
}

pub(crate) fn built(spec: &StageSpec, params: Value, root: &Path) -> Built {
    let services = Services::default().with(Arc::new(DerivedHome::new(root)));
    super::build(spec, params, &services).unwrap_or_else(|problems| panic!("{problems:?}"))
}

/// Where the stage of this kind keeps its things.
pub(crate) fn folder(spec: &StageSpec, root: &Path) -> std::path::PathBuf {
    root.join("test").join("current").join(spec.kind)
}

/// Records of one partition at these positions, with everything up to `settled` dealt with.
pub(crate) fn read(
    partition: &str,
    records: impl IntoIterator<Item = (u64, Record)>,
    settled: Option<u64>,
) -> Batch {
    let mut batch = ReadBatch::new(Partition::from(partition), 0);
    for (resume_at, record) in records {
        batch.push(record, resume_at);
    }
    batch.into_read("log", settled)
}
