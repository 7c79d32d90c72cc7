//! Receipts, estimates and generations in words.

use std::time::Duration;

use courant_replay::rebuild::{Estimate, Found, Listed, Receipt, StageComparison, State};
use indicatif::{HumanBytes, HumanCount, HumanDuration};

use crate::app::ReplayUpdate;

pub(super) fn of(told: &ReplayUpdate) -> String {
    match told {
        ReplayUpdate::Receipt(receipt) => self::receipt(receipt),
        ReplayUpdate::Estimate(estimate) => self::estimate(estimate),
        ReplayUpdate::List(listed) if listed.is_empty() => "no pipeline has a derived store yet".to_owned(),
        ReplayUpdate::List(listed) => listed.iter().map(row).collect::<Vec<_>>().join("\n"),
        ReplayUpdate::Discarded => "discarded".to_owned(),
        ReplayUpdate::Paused => "paused; `--resume` goes on where it was".to_owned(),
        ReplayUpdate::Progress(_) => String::new(),
    }
}

fn receipt(receipt: &Receipt) -> String {
    let Receipt { pipeline, generation, request, records, .. } = receipt;
    let mut lines = vec![
        format!("pipeline    {pipeline}"),
        format!("generation  {generation}"),
        format!(
            "from        {}{}",
            request.from,
            if receipt.scanned { ", with a scan of the store" } else { "" }
        ),
        format!("to          {}", request.to),
        format!("began       {}", receipt.began_at),
        format!("fence       {}", receipt.fence_at),
        format!(
            "records     {} delivered, {} dropped, {} dead-lettered",
            records.delivered, records.dropped, records.dead_lettered
        ),
        format!("made by     courant {}, pipeline version {}", receipt.code, receipt.config),
    ];
    if let Some(comparison) = &receipt.comparison {
        let authority = serde_json::to_value(comparison.authority).unwrap_or_default();
        lines.push(format!(
            "compared    with the {} up to {}, {} look{}",
            authority.as_str().unwrap_or_default(),
            comparison.until,
            comparison.looks,
            if comparison.looks == 1 { "" } else { "s" }
        ));
        if comparison.dead_lettered > 0 {
            lines.push(format!(
                "            {} records could not be compared: the stages gave up on them",
                comparison.dead_lettered
            ));
        }
        lines.extend(comparison.stages.iter().flat_map(stage));
        lines.extend(comparison.not_compared.iter().map(|(stage, effect)| {
            format!("  {stage}: not compared, since `{effect}` before it would have its effects again")
        }));
    }
    lines.push(String::new());
    lines.push(ending(receipt));
    lines.join("\n")
}

fn stage(found: &StageComparison) -> Vec<String> {
    let mut lines = vec![format!(
        "  {}: {} entries of {}, digest {} of {}, {} too new to compare",
        found.stage,
        HumanCount(found.actual),
        HumanCount(found.expected),
        found.actual_digest,
        found.expected_digest,
        HumanCount(found.left_out)
    )];
    let kinds: [(&str, &Found); 4] = [
        ("missing", &found.missing),
        ("extra", &found.extra),
        ("stale", &found.stale),
        ("different", &found.different),
    ];
    for (kind, found) in kinds.into_iter().filter(|(_, found)| found.count > 0) {
        lines.push(format!("    {} {kind}: {}", HumanCount(found.count), found.examples.join(", ")));
    }
    lines
}

fn ending(receipt: &Receipt) -> String {
    let pipeline = &receipt.pipeline;
    match receipt.state {
        State::Live => match &receipt.replaced {
            Some(_) => format!("live; `courant replay {pipeline} --rollback` puts back what was live before"),
            None => "live; there was nothing before it".to_owned(),
        },
        State::Equal => format!("equal; `courant replay {pipeline} --approve` makes it live"),
        State::Differs => format!(
            "{}, and not live; `courant replay {pipeline} --approve` makes it live all the same, \
             `--discard {}` removes it",
            why_not(receipt),
            receipt.generation
        ),
        State::Done => "done; it keeps no store that could go live".to_owned(),
        State::Building | State::Built => {
            format!("not finished; `courant replay {pipeline} --resume` goes on")
        }
    }
}

fn why_not(receipt: &Receipt) -> String {
    let Some(comparison) = receipt.comparison.as_ref().filter(|found| found.differences() == 0) else {
        return "not equal".to_owned();
    };
    if comparison.dead_lettered > 0 {
        return format!(
            "nothing differs, but the stages gave up on {} records, which are missing in it",
            HumanCount(comparison.dead_lettered)
        );
    }
    if comparison.begins_at.is_empty() {
        let stages: Vec<_> = comparison.not_compared.keys().map(String::as_str).collect();
        return format!("not compared ({})", stages.join(", "));
    }
    let begins = comparison.begins_at.iter().map(|(partition, at)| format!("{partition} at {at}"));
    let begins: Vec<_> = begins.collect();
    format!("nothing differs, but the log begins later than there were records ({})", begins.join(", "))
}

fn estimate(estimate: &Estimate) -> String {
    let unknown = || "unknown".to_owned();
    let count = |count: Option<u64>| count.map_or_else(unknown, |count| HumanCount(count).to_string());
    let bytes = estimate.bytes.map_or_else(unknown, |bytes| HumanBytes(bytes).to_string());
    let rate = estimate.records_per_second.map_or_else(unknown, |rate| format!("{rate:.0}/s"));
    let time = estimate.seconds.map_or_else(unknown, |seconds| {
        HumanDuration(Duration::from_secs_f64(seconds.clamp(0.0, 1e9))).to_string()
    });
    let from = if estimate.scanned { "the store, then the log" } else { "the log" };
    format!(
        "reads       {from}\nrecords     {}\nbytes       {bytes}\nread units  {} with the comparison\nrate        {rate}\ntime        {time}, and about as long to compare\n\nnothing was made",
        count(estimate.records),
        count(estimate.read_units),
    )
}

fn row(listed: &Listed) -> String {
    let state = match (listed.is_live, listed.state) {
        (true, _) => "live",
        (false, Some(State::Live) | None) => "kept",
        (false, Some(state)) => state.name(),
    };
    let began = listed.began_at.map_or_else(|| "by itself".to_owned(), |began| format!("rebuilt {began}"));
    let differences = listed.differences.filter(|count| *count > 0);
    let differences = differences.map(|count| format!(", {count} differences")).unwrap_or_default();
    format!("{}  {}  {state:<8}  {began}{differences}", listed.pipeline, listed.generation)
}
