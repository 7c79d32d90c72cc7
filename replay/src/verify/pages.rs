//! Reading whole tables, or what they hold of some chats, a page at a time by several workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use courant_connectors::model::ChatId;
use courant_connectors::store::{Consistency, Item, Page, PageToken, Query, Scan, Segment, TableSchema};
use tokio::task::JoinSet;

use super::context::Context;
use super::{Result, VerifyError};

/// More parts than workers, so that a large part at the end does not leave the others idle.
const PARTS_PER_WORKER: usize = 8;

/// Hands every page of a table to `handle`; of the chats that were asked for, if the table is kept by chat.
pub(crate) async fn each_page<H, F>(
    context: &Arc<Context>,
    schema: &'static TableSchema,
    handle: H,
) -> Result<()>
where
    H: Fn(Arc<Context>, Vec<Item>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<()>> + Send,
{
    let workers = context.options.parallel.get();
    let by_chat = schema.partition.name == "chat_id" && !context.options.chats.is_empty();
    let parts = if by_chat { context.options.chats.len() } else { workers * PARTS_PER_WORKER };
    let part = move |context: &Context, index: usize| {
        if by_chat {
            Part::Chat(schema, context.options.chats[index].clone())
        } else {
            Part::Segment(schema, segment(index, parts))
        }
    };
    work(context, parts, move |context, index| {
        let (part, handle) = (part(&context, index), handle.clone());
        async move { read_part(&context, part, &handle).await }
    })
    .await
}

fn segment(index: usize, of: usize) -> Segment {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Segment { index: number(index), of: number(of) }
}

/// Does `parts` pieces of work, by as many workers as were asked for. The first error ends all of them.
pub(crate) async fn work<H, F>(context: &Arc<Context>, parts: usize, handle: H) -> Result<()>
where
    H: Fn(Arc<Context>, usize) -> F + Clone + Send + 'static,
    F: Future<Output = Result<()>> + Send,
{
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..context.options.parallel.get().min(parts) {
        let (context, next, handle) = (Arc::clone(context), Arc::clone(&next), handle.clone());
        workers.spawn(async move {
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= parts {
                    return Ok(());
                }
                handle(Arc::clone(&context), part).await?;
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.map_err(VerifyError::Worker)??;
    }
    Ok(())
}

enum Part {
    Segment(&'static TableSchema, Segment),
    Chat(&'static TableSchema, ChatId),
}

impl Part {
    /// Eventual: what a page misses is too new to be of interest, and what it has wrong is asked for again.
    async fn page(&self, context: &Context, start_after: Option<PageToken>) -> Result<Page> {
        match self {
            Self::Segment(schema, segment) => {
                let (table, segment) = (schema.name.clone(), *segment);
                let consistency = Consistency::Eventual;
                context.reads.scan(Scan { table, segment, limit: None, start_after, consistency }).await
            }
            Self::Chat(schema, chat) => {
                let mut query = Query::new(schema.name.clone(), schema.partition.name.clone(), chat);
                query.start_after = start_after;
                context.reads.query(query).await
            }
        }
    }
}

async fn read_part<H, F>(context: &Arc<Context>, part: Part, handle: &H) -> Result<()>
where
    H: Fn(Arc<Context>, Vec<Item>) -> F,
    F: Future<Output = Result<()>>,
{
    let mut next = None;
    loop {
        context.check_stop()?;
        let page = part.page(context, next.take()).await?;
        let count = page.items.len();
        if count > 0 {
            handle(Arc::clone(context), page.items).await?;
            context.advance(count);
        }
        next = page.next;
        if next.is_none() {
            return Ok(());
        }
    }
}
