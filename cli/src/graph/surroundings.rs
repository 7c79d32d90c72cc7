//! What stands around pipelines: tables, topics, keys and dead-letter queues.
//!
//! Each is one thing, whichever pipelines touch it, so that a drawing joins the writer of a topic to its
//! readers.

use std::fmt;

use courant_pipeline::config::Topology;
use courant_pipeline::spec::{Level, Mode};

use super::dead_letter_queue;

/// A stage's id in a drawing; made of numbers, so no name can break the syntax.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct StageId {
    pub(super) pipeline: usize,
    pub(super) stage: usize,
}

impl fmt::Display for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}s{}", self.pipeline, self.stage)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// With a resource, by its index.
    Resource(usize, Mode),
    /// To a dead-letter queue, by its index.
    Queue(usize),
}

#[derive(Default)]
pub(super) struct Surroundings<'a> {
    pub(super) resources: Vec<(Level, &'a str)>,
    pub(super) queues: Vec<&'a str>,
    pub(super) links: Vec<(StageId, Link)>,
}

impl<'a> Surroundings<'a> {
    pub(super) fn of(pipelines: &'a [Topology]) -> Self {
        let mut all = Self::default();
        for (pipeline, topology) in pipelines.iter().enumerate() {
            for (stage, node) in topology.stages.iter().enumerate() {
                let id = StageId { pipeline, stage };
                for access in &node.access {
                    let resource = index_of(&mut all.resources, (access.level, access.name.as_str()));
                    all.link(id, Link::Resource(resource, access.mode));
                }
                if let Some(queue) = dead_letter_queue(node) {
                    let queue = index_of(&mut all.queues, queue);
                    all.link(id, Link::Queue(queue));
                }
            }
        }
        all
    }

    fn link(&mut self, from: StageId, link: Link) {
        if !self.links.contains(&(from, link)) {
            self.links.push((from, link));
        }
    }
}

/// Where `item` stands in the list, which it joins if it is new.
fn index_of<T: PartialEq>(items: &mut Vec<T>, item: T) -> usize {
    items.iter().position(|known| *known == item).unwrap_or_else(|| {
        items.push(item);
        items.len() - 1
    })
}
