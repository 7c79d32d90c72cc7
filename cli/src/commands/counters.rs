//! `courant counters`: which sequence counters are missing or behind, and recovering them.

use std::path::Path;

use anyhow::bail;
use courant_connectors::model::ChatId;
use courant_replay::counters::{Action, CounterReport, Fault, Options, Report, Seen};
use courant_replay::verify::Ending;

use super::verify::counted;
use super::{reach, say};
use crate::app::Job;
use crate::args::{CheckCounters, Counters, RecoverCounters};
use crate::exit::Exit;

pub(super) async fn run(file: &Path, command: Counters) -> anyhow::Result<()> {
    let (options, json) = options(command);
    let report: Report = reach::work(file, Job::Counters(options)).await?;
    say(&if json { serde_json::to_string_pretty(&report)? } else { text(&report) })?;
    if report.left() > 0 {
        return Err(Exit::Violated.into());
    }
    if report.ending == Ending::Stopped {
        bail!("stopped before every counter was looked at; run it again for the rest");
    }
    Ok(())
}

fn options(command: Counters) -> (Options, bool) {
    let ids = |chats: Vec<String>| -> Vec<ChatId> { chats.into_iter().map(Into::into).collect() };
    let (common, options) = match command {
        Counters::Check(CheckCounters { chats, common }) => {
            (common, Options { chats: ids(chats), ..Options::default() })
        }
        Counters::Recover(RecoverCounters { chats, dry_run, margin, grace, common, all: _ }) => {
            let action = if dry_run { Action::DryRun } else { Action::Recover };
            let grace = grace.0;
            (common, Options { chats: ids(chats), action, margin, grace, ..Options::default() })
        }
    };
    let (with_log, examples, parallel) = (common.with_log, common.examples, common.parallel);
    (Options { with_log, examples, parallel, ..options }, common.json)
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for counter in &report.counters {
        text += &line(counter);
    }
    let more = report.found.saturating_sub(report.counters.len() as u64);
    if more > 0 {
        text += &format!("… and {more} more; --examples shows more\n");
    }
    text + &verdict(report)
}

fn line(told: &CounterReport) -> String {
    let CounterReport { chat_id, fault, counter, highest, seen_in, set_to, would_be } = told;
    let seen = match seen_in {
        Seen::Messages => "in its messages",
        Seen::Watermarks => "in what members acknowledged",
        Seen::Log => "in the log",
    };
    let used = format!("{highest} was used, as seen {seen}");
    let problem = match (fault, counter) {
        (Fault::Missing, _) => format!("has no counter; {used}"),
        (Fault::Behind, Some(counter)) => format!("its counter is at {counter}; {used}"),
        (Fault::Behind, None) => format!("its counter is behind; {used}"),
        (Fault::Unreadable, _) => "its counter is no number; correct or remove the item".to_owned(),
        (Fault::NoChat, _) => "there is no such chat".to_owned(),
    };
    let done = match (set_to, would_be) {
        (Some(set_to), _) => format!(" – set to {set_to}"),
        (None, Some(would_be)) => format!(" – would be set to {would_be}"),
        (None, None) => String::new(),
    };
    format!("{chat_id}  {problem}{done}\n")
}

fn verdict(report: &Report) -> String {
    let looked = counted(report.chats, "chat");
    match (report.ending, report.found, report.recovered) {
        (Ending::Stopped, ..) => format!("stopped early, after {looked}\n"),
        (_, 0, _) => format!("in order: {looked}, every counter is there and far enough\n"),
        (_, found, 0) => format!("not in order: {} of {looked}\n", counted(found, "counter")),
        (_, found, recovered) => {
            format!("recovered {recovered} of {} of {looked}\n", counted(found, "counter"))
        }
    }
}

#[cfg(test)]
mod tests {
    use courant_connectors::model::Timestamp;

    use super::*;

    fn a_report(counters: Vec<CounterReport>, recovered: u64) -> Report {
        let at = Timestamp::from_unix_millis(1_769_783_400_000);
        let found = counters.len() as u64;
        Report {
            began_at: at,
            ended_at: at,
            ending: Ending::Finished,
            chats: 1200,
            found,
            recovered,
            counters,
        }
    }

    #[test]
    fn each_counter_is_told_with_what_was_done() {
        let missing = CounterReport {
            chat_id: "chat_1".into(),
            fault: Fault::Missing,
            counter: None,
            highest: 41,
            seen_in: Seen::Messages,
            set_to: None,
            would_be: None,
        };
        let told = text(&a_report(vec![missing.clone()], 0));
        assert_eq!(
            told,
            "chat_1  has no counter; 41 was used, as seen in its messages\nnot in order: 1 counter of 1,200 chats\n"
        );
        let dry = text(&a_report(vec![CounterReport { would_be: Some(41), ..missing.clone() }], 0));
        assert!(dry.contains("messages – would be set to 41\n"), "{dry}");
        let set = CounterReport { set_to: Some(41), fault: Fault::Behind, counter: Some(7), ..missing };
        let set = text(&a_report(vec![set], 1));
        assert!(
            set.contains("its counter is at 7; 41 was used, as seen in its messages – set to 41\n"),
            "{set}"
        );
        assert!(set.ends_with("recovered 1 of 1 counter of 1,200 chats\n"), "{set}");
        assert!(text(&a_report(Vec::new(), 0)).starts_with("in order: 1,200 chats"));
    }
}
