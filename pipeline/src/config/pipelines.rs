//! From `[[pipeline]]` tables to topologies.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::authority::{self, Declared};
use super::diagnostic::Origin;
use super::draft::{Check, Draft};
use super::entry::{PipelineEntry, StageEntry};
use super::followers::Followers;
use super::letters;
use super::source::Spot;
use super::suggest::quote;
use super::topology::{Policy, StageNode, Topology};
use super::tree::Node;
use super::ways_in::WaysIn;
use super::wiring::{self, Link};
use crate::spec::Preferences;

/// Checks every pipeline and returns those without errors.
pub(super) fn check_all(node: &Node, check: &mut Check<'_>) -> Vec<Topology> {
    let mut names: BTreeMap<&str, &Spot> = BTreeMap::new();
    let (mut topologies, mut followers, mut ways_in) = (Vec::new(), Followers::default(), WaysIn::default());
    for (index, node) in node.elements().iter().enumerate() {
        let before = check.report.errors();
        let draft = Draft::read(node, index, check);
        refuse_same_name(&draft, &mut names, check);
        let links = wiring::wire(&draft, check.registry, check.report);
        check_authority(&draft, &links, check);
        letters::check(&draft, check.report);
        followers.check(&draft, check.report);
        ways_in.check(&draft, check.report);
        refuse_lanes(&draft, &links, check);
        if check.report.errors() == before {
            topologies.extend(topology(draft, &links, check));
        }
    }
    topologies
}

fn refuse_same_name<'n>(draft: &Draft<'n>, names: &mut BTreeMap<&'n str, &'n Spot>, check: &mut Check<'_>) {
    let (Some(name), Some(written)) = (draft.name, draft.node.get("name")) else { return };
    let Some(first) = names.get(name) else {
        names.insert(name, &written.at);
        return;
    };
    let help = match check.sources.origin(first) {
        Origin::File { path, line, column, .. } => {
            Some(format!("the other is at {}:{line}:{column}", path.display()))
        }
        Origin::Env { .. } | Origin::Default => None,
    };
    let message = format!("two pipelines are called {}", quote(name));
    check.report.error(&written.at, &draft.at.key("name").path, message, help);
}

/// Which stages work in one lane: those that say so, and those before one that needs records in order.
fn one_lane_only(draft: &Draft<'_>, links: &[Link]) -> Vec<bool> {
    let built = |index: usize| draft.stages[index].built.as_ref();
    let mut only: Vec<bool> =
        (0..draft.stages.len()).map(|index| built(index).is_some_and(|built| built.in_one_lane)).collect();
    for index in (0..draft.stages.len()).filter(|index| built(*index).is_some_and(|built| built.in_order)) {
        let path = std::iter::successors(Some(index), |index| links[*index].input().map(|input| input.stage));
        // An input always comes earlier, so the path is no longer than the pipeline.
        path.take(links.len()).for_each(|stage| only[stage] = true);
    }
    only
}

fn refuse_lanes(draft: &Draft<'_>, links: &[Link], check: &mut Check<'_>) {
    for (stage, only) in draft.stages.iter().zip(one_lane_only(draft, links)) {
        if let Some(lanes) = stage.node.get("lanes").filter(|lanes| only && lanes.to_json() != 1) {
            let message = format!("stage `{}` works in one lane", stage.name);
            let help = "it, or one behind it, needs the records of all keys together: leave `lanes` out";
            check.report.error(&lanes.at, &stage.at.key("lanes").path, message, Some(help.to_owned()));
        }
    }
}

fn check_authority(draft: &Draft<'_>, links: &[Link], check: &mut Check<'_>) {
    // Without a plane most rules cannot be asked; the plane itself has been reported.
    let Some(plane) = draft.plane else { return };
    let declared: Vec<Declared<'_>> = draft
        .stages
        .iter()
        .zip(links)
        .map(|(stage, link)| Declared {
            stage: &stage.name,
            effect: stage.spec.map(|spec| spec.effect),
            access: stage.built.as_ref().map(|built| &built.access[..]),
            input: link.input().map(|input| input.stage),
        })
        .collect();
    let broken_path = |mut stage: usize| loop {
        match links[stage] {
            Link::Broken => break true,
            Link::Start => break false,
            Link::From(input) => stage = input.stage,
        }
    };
    for violation in authority::violations(draft.name.unwrap_or("?"), plane, &declared) {
        // What comes before a stage that is not connected is anyone's guess.
        if matches!(violation.rule.unless, authority::Unless::UpToHere(..)) && broken_path(violation.stage) {
            continue;
        }
        let stage = &draft.stages[violation.stage];
        let help = violation.help();
        check.report.error(stage.spot(), &stage.at.path, violation.message, Some(help));
    }
}

fn topology(draft: Draft<'_>, links: &[Link], check: &mut Check<'_>) -> Option<Topology> {
    let written = draft.checked.get("stage").cloned().unwrap_or_default();
    let one_lane = one_lane_only(&draft, links);
    let entry: PipelineEntry = match serde_json::from_value(draft.checked) {
        Ok(entry) => entry,
        Err(error) => {
            check.report.error(&draft.node.at, &draft.at.path, error.to_string(), None);
            return None;
        }
    };
    let (mut stages, mut serves) = (Vec::with_capacity(entry.stage.len()), Vec::new());
    for (index, ((stage, entry_stage), link)) in
        draft.stages.into_iter().zip(&entry.stage).zip(links).enumerate()
    {
        let built = stage.built?;
        let mut policy = policy(entry_stage, &entry.name);
        prefer(&mut policy, &built.prefers, &written[index]);
        if one_lane[index] {
            policy.lanes = Some(1);
        }
        if let Some(most) = built.max_batch {
            policy.batch.records = policy.batch.records.min(most);
        }
        stages.push(StageNode {
            name: stage.name.into(),
            spec: stage.spec?,
            params: serde_json::Value::Object(entry_stage.params.clone()),
            input: link.input(),
            outputs: built.outputs,
            rekeys: built.rekeys,
            access: built.access,
            policy,
        });
        serves.extend(built.serves);
    }
    let reply_after =
        entry.reply_after.as_ref().and_then(|name| stages.iter().position(|s| *s.name == **name));
    Some(Topology {
        name: entry.name.as_str().into(),
        plane: entry.plane,
        reply_after,
        stages,
        serves,
        entry: Arc::new(entry),
    })
}

/// Puts what a kind prefers in place of what the file leaves out.
fn prefer(policy: &mut Policy, preferred: &Preferences, written: &serde_json::Value) {
    policy.lanes = policy.lanes.or(preferred.lanes.map(|lanes| usize::from(lanes.get())));
    policy.buffer =
        policy.buffer.or(preferred.buffer.and_then(|records| usize::try_from(records.get()).ok()));
    let says = |key: &str| !written["batch"][key].is_null();
    if !says("records") {
        policy.batch.records = preferred.batch.records;
    }
    if !says("bytes") {
        policy.batch.bytes = preferred.batch.bytes;
    }
    if !says("wait") {
        policy.batch.wait = preferred.batch.wait;
    }
}

fn policy(entry: &StageEntry, pipeline: &str) -> Policy {
    let queue = entry.dead_letter.as_deref().unwrap_or(pipeline);
    Policy {
        lanes: entry.lanes.map(|lanes| usize::from(lanes.get())),
        batch: entry.batch,
        buffer: entry.buffer.map(|records| usize::try_from(records.get()).unwrap_or(usize::MAX)),
        retry: entry.retry,
        on_error: entry.on_error,
        dead_letter_queue: queue.into(),
    }
}
