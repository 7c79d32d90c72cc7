//! A report, and the list of checks, as people read them.

use std::time::Duration;

use courant_pipeline::units::Span;
use courant_replay::verify::{CHECKS, Check, CheckReport, Ending, Example, Report, Severity};
use serde_json::json;

use crate::args::ListFormat;

pub(super) fn report(report: &Report) -> String {
    let mut text = figures(report);
    for check in &report.checks {
        text += &line(check);
    }
    for check in report.checks.iter().filter(|check| check.found > 0) {
        text += &format!("\n{}", findings(check));
    }
    text + "\n" + &verdict(report)
}

/// What was read, and how long it took.
pub(in crate::commands) fn figures(report: &Report) -> String {
    let figures = &report.figures;
    let count = |(name, count): (&String, &u64)| format!("{} {name}", grouped(*count));
    let items: Vec<_> = figures.items.iter().map(count).collect();
    let events: Vec<_> = figures.events.iter().map(count).collect();
    let millis = report.ended_at.unix_millis().saturating_sub(report.began_at.unix_millis());
    let mut text = String::new();
    for (what, list) in [("items", items), ("events", events)] {
        if !list.is_empty() {
            text += &format!("{what:<9} {}\n", list.join(", "));
        }
    }
    let mut notes = Vec::new();
    if figures.gaps > 0 {
        let (gaps, chats) = (grouped(figures.gaps), grouped(figures.chats_with_gaps));
        notes
            .push(format!("{gaps} sequences in {chats} chats were allocated and not used, which is allowed"));
    }
    if figures.too_new > 0 {
        let count = grouped(figures.too_new);
        notes.push(format!("{count} messages are too new for their events to be missed"));
    }
    if figures.before_the_log > 0 {
        let count = grouped(figures.before_the_log);
        notes.push(format!("{count} messages are older than what the log holds"));
    }
    if figures.watched > 0 {
        notes.push(format!("{} watermarks and counters were looked at twice", grouped(figures.watched)));
    }
    for note in notes {
        text += &format!("note      {note}\n");
    }
    text + &format!("time      {}\n\n", Span(Duration::from_millis(millis)))
}

fn line(check: &CheckReport) -> String {
    let (state, of) = match (&check.skipped, check.found) {
        (Some(reason), _) => ("-", reason.clone()),
        (None, 0) => ("ok", grouped(check.looked_at)),
        (None, found) => {
            (severity(check.severity), format!("{} of {}", grouped(found), grouped(check.looked_at)))
        }
    };
    format!("{state:<8} {:<18} {of}\n", check.id)
}

/// What one check came to, with examples.
pub(in crate::commands) fn findings(check: &CheckReport) -> String {
    let mut text = format!("{}: {}\n", check.id, severity(check.severity));
    for (label, value) in [("holds", &check.holds), ("means", &check.means), ("remedy", &check.remedy)] {
        text += &format!("  {label:<7} {value}\n");
    }
    text += &format!("  from    {}\n", check.from);
    for example in &check.examples {
        text += &format!("  - {}\n", named(example));
    }
    match check.found.saturating_sub(check.examples.len() as u64) {
        0 => text,
        more => text + &format!("  … and {} more; --examples shows more\n", grouped(more)),
    }
}

fn named(example: &Example) -> String {
    let chat = example.chat_id.as_ref().map(|chat| format!("chat {chat}"));
    let sequence = example.sequence.map(|sequence| format!("sequence {sequence}"));
    let user = example.user_id.as_ref().map(|user| format!("user {user}"));
    let names: Vec<_> = [chat, sequence, user].into_iter().flatten().collect();
    if names.is_empty() {
        example.detail.clone()
    } else {
        format!("{}: {}", names.join(", "), example.detail)
    }
}

fn verdict(report: &Report) -> String {
    let (errors, warnings) = (report.found(Severity::Error), report.found(Severity::Warning));
    let made = report.checks.iter().filter(|check| check.skipped.is_none()).count() as u64;
    let found = match (errors, warnings) {
        (0, 0) => "nothing found".to_owned(),
        (0, warnings) => counted(warnings, "warning"),
        (errors, 0) => counted(errors, "error"),
        (errors, warnings) => format!("{}, {}", counted(errors, "error"), counted(warnings, "warning")),
    };
    match report.ending {
        Ending::Finished if errors == 0 => format!("in order: {}, {found}\n", counted(made, "check")),
        Ending::Finished => format!("not in order: {found}\n"),
        Ending::Stopped => format!("stopped early: {found} until then\n"),
    }
}

const fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

/// `1,234 events`, `1 event`.
pub(in crate::commands) fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// `1,234,567`.
pub(in crate::commands) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

pub(super) fn list(format: ListFormat) -> anyhow::Result<String> {
    Ok(match format {
        ListFormat::Text => as_text(),
        ListFormat::Json => {
            serde_json::to_string_pretty(&CHECKS.iter().map(|check| as_value(check)).collect::<Vec<_>>())?
        }
        ListFormat::Markdown => markdown(),
    })
}

fn as_text() -> String {
    let one = |check: &&Check| {
        let Check { id, holds, means, remedy, from, .. } = check;
        let severity = severity(check.severity);
        format!("{id}  ({severity}; {from})\n  {holds}\n  if not: {means}\n  remedy: {remedy}\n")
    };
    CHECKS.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn as_value(check: &Check) -> serde_json::Value {
    json!({
        "id": check.id,
        "severity": check.severity,
        "holds": check.holds,
        "means": check.means,
        "remedy": check.remedy,
        "from": check.from,
    })
}

const PREFACE: &str = "\
# What `courant verify` checks

Written by `courant verify --list=markdown`. `courant verify --help` says how to ask.

- *Errors* are what no crash and no delay explains. *Warnings* are what interrupted work leaves behind, or what is late.
- It can run beside a deployment at work. What is written second is read first, and what must have been there before it is
  then read strongly; so a finding is one that motion cannot explain. A message without its event is reported only if it was
  older than `--grace` when the end of the log was noted, and if the event has not come by a later look at the end.
- Whether watermarks and counters only move forward takes two looks: with `--watch 30s` up to 100,000 of each are written
  down and read again.
- It keeps a few pages for each worker, and for each chat which sequences it saw: at most 225 bytes for a chat and 16 for each
  gap, so ten million messages in a hundred thousand chats take some 25 MB. Every item and every event is read once, and for
  each about two others by key.
- Invariants that data cannot show are kept elsewhere: conditions of writes, the access that pipelines are given
  (`courant iam`), and the rules of authority that `courant check` applies.

| check | what holds | if not | remedy | from |
|---|---|---|---|---|
";

fn markdown() -> String {
    let row = |check: &&Check| {
        let Check { id, holds, means, remedy, from, .. } = check;
        format!("| `{id}` ({}) | {holds} | {means} | {remedy} | {from} |\n", severity(check.severity))
    };
    PREFACE.to_owned() + &CHECKS.iter().map(row).collect::<String>()
}

#[cfg(test)]
mod tests {
    use courant_connectors::model::Timestamp;
    use courant_replay::verify::{Figures, check};

    use super::*;

    fn a_check(id: &str, found: u64, examples: Vec<Example>) -> CheckReport {
        CheckReport::of(check(id).unwrap(), 1234, found, examples)
    }

    fn a_report(checks: Vec<CheckReport>) -> Report {
        let items = [("messages".to_owned(), 1_234_567)].into();
        Report {
            began_at: Timestamp::from_unix_millis(1_769_783_400_000),
            ended_at: Timestamp::from_unix_millis(1_769_783_401_500),
            ending: Ending::Finished,
            figures: Figures { items, gaps: 2, chats_with_gaps: 1, ..Figures::default() },
            checks,
        }
    }

    #[test]
    fn a_finding_says_where_what_it_means_and_what_to_do() {
        let example = Example {
            chat_id: Some("chat_1".into()),
            sequence: Some(7),
            user_id: None,
            detail: "key 'c-1' has another sender_id".to_owned(),
        };
        let text = report(&a_report(vec![
            a_check("counter-exists", 0, Vec::new()),
            a_check("key-agrees", 1001, vec![example]),
        ]));
        for told in [
            "items     1,234,567 messages\n",
            "2 sequences in 1 chats",
            "time      1s 500ms\n",
            "ok       counter-exists     1,234\n",
            "error    key-agrees         1,001 of 1,234\n",
            "- chat chat_1, sequence 7: key 'c-1' has another sender_id\n",
            "and 1,000 more",
            "remedy  correct the key after the message\n",
            "\nnot in order: 1,001 errors\n",
        ] {
            assert!(text.contains(told), "{told:?} is not in\n{text}");
        }
    }

    #[test]
    fn what_is_in_order_is_said_in_a_line() {
        let clean = report(&a_report(vec![a_check("counter-exists", 0, Vec::new())]));
        assert!(clean.ends_with("\nin order: 1 check, nothing found\n"), "{clean}");
        let warned = report(&a_report(vec![a_check("event-order", 1, Vec::new())]));
        assert!(warned.ends_with("\nin order: 1 check, 1 warning\n"), "{warned}");
    }

    #[test]
    fn every_check_is_listed() {
        for format in [ListFormat::Text, ListFormat::Json, ListFormat::Markdown] {
            let text = list(format).unwrap();
            for check in CHECKS {
                assert!(text.contains(check.id) && text.contains(check.remedy), "{}", check.id);
            }
        }
    }
}
