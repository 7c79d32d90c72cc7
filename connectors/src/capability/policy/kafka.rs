//! Kafka's access rules, as the commands that make them.

use std::collections::BTreeSet;

use super::super::grant::{Access, Grant};

/// Who the rules are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaConsumer {
    /// The name of the login, without `User:`.
    pub user: String,
    /// `host:port`, several separated by commas.
    pub brokers: String,
    /// The groups in which topics are read.
    pub groups: BTreeSet<String>,
}

/// One command per rule, or nothing if the grant has no topic. Lines that begin with `#` are for who reads them.
pub fn kafka_acls(grant: &Grant, who: &KafkaConsumer) -> Vec<String> {
    let with = |access: Access| grant.topics().filter(move |(_, granted)| *granted == access);
    let (reads, writes) = (with(Access::Read).count() > 0, with(Access::Write).count() > 0);
    // Reading and writing include describing.
    let readable =
        with(Access::Read).map(|(topic, _)| who.allow("Read", &format!("--topic {}", quoted(topic))));
    let groups = who.groups.iter().filter(|_| reads);
    let groups = groups.map(|group| who.allow("Read", &format!("--group {}", quoted(group))));
    let writable =
        with(Access::Write).map(|(topic, _)| who.allow("Write", &format!("--topic {}", quoted(topic))));
    let mut commands: Vec<String> = readable.chain(groups).chain(writable).collect();
    if writes {
        let idempotent = who.allow("IdempotentWrite", "--cluster");
        commands.push(format!("# only for brokers before 2.8: {idempotent}"));
    }
    commands
}

impl KafkaConsumer {
    fn allow(&self, operation: &str, resource: &str) -> String {
        let principal = quoted(&format!("User:{}", self.user));
        format!(
            "kafka-acls.sh --bootstrap-server {} --add --allow-principal {principal} --operation {operation} {resource}",
            quoted(&self.brokers)
        )
    }
}

/// A word of a shell's command line; names come from a configuration and may hold anything.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "._-:,".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(groups: &[&str]) -> KafkaConsumer {
        KafkaConsumer {
            user: "courant-fanout".into(),
            brokers: "a:9092,b:9092".into(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
        }
    }

    const START: &str = "kafka-acls.sh --bootstrap-server a:9092,b:9092 --add --allow-principal User:courant-fanout --operation";

    #[test]
    fn without_a_topic_there_are_no_rules_not_even_for_the_group() {
        let grant = Grant::nothing().table("messages.persisted", Access::Read);
        assert_eq!(kafka_acls(&grant, &who(&["fanout"])), [""; 0]);
    }

    #[test]
    fn who_reads_may_read_the_topic_and_keep_its_place_in_the_group() {
        let grant = Grant::nothing().topic("messages.persisted", Access::Read);
        assert_eq!(
            kafka_acls(&grant, &who(&["fanout"])),
            [format!("{START} Read --topic messages.persisted"), format!("{START} Read --group fanout")]
        );
    }

    #[test]
    fn who_writes_may_write_and_has_no_group() {
        let grant = Grant::nothing().topic("chats.created", Access::Write);
        assert_eq!(
            kafka_acls(&grant, &who(&["fanout"])),
            [
                format!("{START} Write --topic chats.created"),
                format!("# only for brokers before 2.8: {START} IdempotentWrite --cluster"),
            ]
        );
    }

    #[test]
    fn a_name_cannot_leave_its_word() {
        let grant = Grant::nothing().topic("x'; rm -rf ~ #", Access::Read);
        let commands = kafka_acls(&grant, &who(&[]));
        assert_eq!(commands, [format!(r"{START} Read --topic 'x'\''; rm -rf ~ #'")]);
    }
}
