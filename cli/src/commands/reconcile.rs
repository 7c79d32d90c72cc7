//! `courant reconcile`: where store and log disagree, and bringing them together again.

use std::path::Path;

use anyhow::bail;
use courant_replay::reconcile::{Options, Report, Swept};
use courant_replay::verify::{CheckReport, Ending};

use super::verify::{counted, figures, findings, grouped};
use super::{reach, say};
use crate::app::Job;
use crate::args::Reconcile;
use crate::exit::Exit;

pub(super) async fn run(file: &Path, arguments: Reconcile) -> anyhow::Result<()> {
    let report: Report = reach::work(file, Job::Reconcile(options(&arguments))).await?;
    say(&if arguments.json { serde_json::to_string_pretty(&report)? } else { text(&report) })?;
    if report.left() > 0 {
        return Err(Exit::Violated.into());
    }
    if report.looked.ending == Ending::Stopped {
        bail!("stopped before everything was looked at; run it again for the rest");
    }
    Ok(())
}

fn options(arguments: &Reconcile) -> Options {
    Options {
        chats: arguments.chats.iter().map(|chat| chat.as_str().into()).collect(),
        since: arguments.since.map(|since| since.0),
        publish: arguments.publish,
        sweep_chats: arguments.sweep_chats.then_some(arguments.older_than.0),
        grace: arguments.grace.0,
        examples: arguments.examples,
        parallel: arguments.parallel,
        ..Options::default()
    }
}

fn text(report: &Report) -> String {
    let mut text = figures(&report.looked);
    for check in report.looked.checks.iter().filter(|check| check.skipped.is_none()) {
        text += &line(check);
    }
    if let Some(published) = report.published {
        let (events, chats) = (counted(published.events, "event"), counted(published.chats, "chat"));
        text += &format!("published  {events} of {chats}\n");
    }
    if let Some(swept) = &report.swept {
        text += &sweeping(swept);
    }
    for check in report.looked.checks.iter().filter(|check| check.found > 0) {
        text += &format!("\n{}", findings(check));
    }
    text + "\n" + &verdict(report)
}

fn line(check: &CheckReport) -> String {
    let what = match check.id.as_str() {
        "message-event" => "messages without their event",
        "event-message" => "events without their message",
        "event-content" => "events that say something else than their message",
        "chat-formed" => "groups that were begun and never made",
        _ => "memberships that lead to no chat",
    };
    format!("{:>9}  {what}\n", grouped(check.found))
}

fn sweeping(swept: &Swept) -> String {
    let (groups, members) = (counted(swept.groups, "group"), counted(swept.memberships, "membership"));
    let mut text = format!("swept      {groups} with {members}\n");
    if swept.kept > 0 {
        text += &format!("kept       {}\n", counted(swept.kept, "group"));
    }
    for kept in &swept.examples {
        text += &format!("  - {}: {}\n", kept.chat_id, kept.why);
    }
    text
}

fn verdict(report: &Report) -> String {
    let stopped = report.looked.ending == Ending::Stopped;
    match (report.left(), report.without_message()) {
        _ if stopped => "stopped early: run it again for the rest\n".to_owned(),
        (0, _) => "store and log agree\n".to_owned(),
        (left, orphans) if left == orphans => {
            "store and log disagree: the store decides, and an event cannot be taken back; rebuild what was made from the log\n"
                .to_owned()
        }
        _ => "store and log disagree: --publish publishes the events that are missing\n".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use courant_connectors::model::Timestamp;
    use courant_replay::reconcile::{Kept, Published};
    use courant_replay::verify::{self, Figures, check};

    use super::*;

    fn a_report(missing: u64, orphans: u64) -> Report {
        let checks = [("message-event", missing), ("event-message", orphans), ("chat-formed", 1)];
        let checks = checks.map(|(id, found)| CheckReport::of(check(id).unwrap(), 10, found, Vec::new()));
        let looked = verify::Report {
            began_at: Timestamp::from_unix_millis(1_769_783_400_000),
            ended_at: Timestamp::from_unix_millis(1_769_783_401_500),
            ending: Ending::Finished,
            figures: Figures::default(),
            checks: checks.to_vec(),
        };
        Report { looked, published: None, swept: None }
    }

    #[test]
    fn what_is_left_to_do_is_said_last() {
        assert!(text(&a_report(0, 0)).ends_with("\nstore and log agree\n"));
        let missing = text(&a_report(1234, 2));
        assert!(missing.contains("    1,234  messages without their event\n"), "{missing}");
        assert!(missing.ends_with("--publish publishes the events that are missing\n"), "{missing}");
        let published = Report { published: Some(Published { events: 1234, chats: 1 }), ..a_report(1234, 2) };
        let published = text(&published);
        assert!(published.contains("published  1,234 events of 1 chat\n"), "{published}");
        assert!(published.contains("an event cannot be taken back"), "{published}");
    }

    #[test]
    fn groups_that_stay_are_named_with_the_reason() {
        let kept = Kept { chat_id: "chat_1".into(), why: "it is too new".to_owned() };
        let swept = Swept { groups: 1, memberships: 250, kept: 1, examples: vec![kept] };
        let said = text(&Report { swept: Some(swept), ..a_report(0, 0) });
        assert!(said.contains("swept      1 group with 250 memberships\nkept       1 group\n"), "{said}");
        assert!(said.contains("  - chat_1: it is too new\n"), "{said}");
    }
}
