//! What sources have in common that follow a table together with others of their group: who they are in it, and how far
//! behind they say they are.

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::capability::RestrictedStore;
use courant_connectors::model::WorkerId;
use courant_connectors::store::{Name, ShardId};
use courant_connectors::stream::{StreamEvent, StreamOptions, StreamWorker};
use courant_pipeline::spec::{BuildContext, Problem};
use courant_pipeline::units::Span;
use courant_pipeline::{StageError, clock};
use tokio::task::JoinSet;

use crate::backends::store_error;
use crate::host::PositionFiles;
use crate::metrics;

/// Several signs of life have to fit in, each of which is a write and may be slow.
const SHORTEST_LEASE: Duration = Duration::from_millis(500);
/// How often to tell how far behind it is.
const TELL_LAG_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn default_lease() -> Span {
    Span::secs(10)
}

/// What is wrong with the parameters `group` and `lease`.
pub(crate) fn problems(group: Option<&str>, lease: Span) -> Vec<Problem> {
    let mut problems = Vec::new();
    if lease.0 < SHORTEST_LEASE {
        let message = format!("a lease of {lease} is shorter than signs of life take");
        problems
            .push(Problem::new("lease", message).help("half a second is the least; ten seconds are usual"));
    }
    if group.is_some_and(str::is_empty) {
        let problem = Problem::new("group", "a group has a name");
        problems.push(problem.help("leave it out to use the pipeline's name"));
    }
    problems
}

/// A pipeline's place in its group, before it joins.
pub(crate) struct StreamGroup {
    pipeline: String,
    name: String,
    lease: Duration,
    files: Option<Arc<PositionFiles>>,
}

impl StreamGroup {
    /// The pipeline's name stands for the group's if that is left out.
    pub(crate) fn of(context: &BuildContext<'_>, name: Option<String>, lease: Span) -> Self {
        Self {
            pipeline: context.pipeline.to_owned(),
            name: name.unwrap_or_else(|| context.pipeline.to_owned()),
            lease: lease.0,
            files: context.services.get::<PositionFiles>(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// How to follow a table; `group` is who shares its shards, and `source` whose worker this is.
    pub(crate) async fn options(
        &self,
        source: &str,
        group: &str,
        table: Name,
        keys: Vec<Name>,
    ) -> Result<StreamOptions, StageError> {
        let mut options = StreamOptions::new(table, keys, group, self.worker_id(source).await?);
        options.lease = self.lease;
        Ok(options)
    }

    /// The same after a restart, if the process has a folder: nobody else uses that at the same time, so leases of
    /// this name are ours and need not run out first.
    async fn worker_id(&self, source: &str) -> Result<WorkerId, StageError> {
        let Some(files) = &self.files else { return Ok(WorkerId::generate()) };
        let known = files.note(&self.pipeline, source).await?;
        if let Some(id) = known.as_ref().and_then(|note| note["worker"].as_str()) {
            return Ok(id.into());
        }
        let id = WorkerId::generate();
        files.keep_note(&self.pipeline, source, serde_json::json!({"worker": id})).await?;
        Ok(id)
    }

    pub(crate) fn join(&self, store: RestrictedStore, options: StreamOptions) -> StreamMember {
        let worker = StreamWorker::join(Arc::new(store), options);
        let (pipeline, behind_since) = (self.pipeline.clone(), worker.behind_since());
        let mut telling = JoinSet::new();
        telling.spawn(async move {
            loop {
                let since = behind_since().and_then(|at| clock::now().duration_since(at).ok());
                metrics::stream_lag(&pipeline, since.unwrap_or_default());
                tokio::time::sleep(TELL_LAG_EVERY).await;
            }
        });
        StreamMember { pipeline: self.pipeline.clone(), worker, telling }
    }
}

/// A worker of a group that tells how far behind it is. Dropped without [`close`](Self::close), it is as if it had died.
pub(crate) struct StreamMember {
    pipeline: String,
    worker: StreamWorker,
    telling: JoinSet<()>,
}

impl StreamMember {
    /// See [`StreamWorker::next`]; cancel-safe like that.
    pub(crate) async fn next(&mut self, max: usize) -> Result<StreamEvent, StageError> {
        self.worker.next(max).await.map_err(|error| store_error("follow the table", error))
    }

    /// See [`StreamWorker::done`]. A dropped call is made up for by the next.
    pub(crate) async fn done(
        &mut self,
        through: impl IntoIterator<Item = (ShardId, u64)>,
    ) -> Result<(), StageError> {
        let done = self.worker.done(through).await;
        done.map_err(|error| store_error("keep the place in the stream", error))
    }

    pub(crate) async fn close(mut self) -> Result<(), StageError> {
        self.telling.shutdown().await;
        // Whoever takes over is behind, or nobody is.
        metrics::stream_lag(&self.pipeline, Duration::ZERO);
        self.worker.close().await.map_err(|error| store_error("let go of the stream", error))
    }
}
