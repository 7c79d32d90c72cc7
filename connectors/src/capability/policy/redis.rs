//! A Redis access rule: keys by family, channels, and the commands that the connector sends to them.
//!
//! A script's keys count as read and written whatever it does, so a family that is changed by scripts is open for both;
//! the others are open for reading (`%R~`) or writing (`%W~`) only. The commands of a rule are not bound to its keys:
//! who may write one family may send the same command to another that is readable, and Redis refuses the key.

use std::collections::BTreeSet;

use super::super::grant::{Access, Grant};
use crate::model::families::{Family, FamilyKind, family};

/// What the rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisServers {
    Single,
    /// A single server, and not its first database.
    NumberedDatabase,
    /// Its nodes are found by asking one of them.
    Cluster,
}

/// What the connector sends to the keys or channels of a family.
struct Commands {
    read: &'static [&'static str],
    write: &'static [&'static str],
    /// Whether some of the writes are scripts.
    scripted: bool,
}

const SET_OF_CONNECTIONS: Commands = Commands {
    read: &["smembers"],
    write: &["eval", "exec", "multi", "pexpire", "sadd", "srem"],
    scripted: true,
};

fn commands(family: &str) -> Option<Commands> {
    Some(match family {
        "connection" => {
            Commands { read: &["get"], write: &["del", "exec", "multi", "pexpire", "set"], scripted: false }
        }
        "user_connections" | "gateway_connections" => SET_OF_CONNECTIONS,
        "chat_members" => Commands {
            read: &["smembers"],
            write: &["del", "eval", "pexpire", "sadd", "sismember", "smembers", "srandmember"],
            scripted: true,
        },
        "user_presence" => Commands { read: &["get"], write: &["set"], scripted: false },
        "rate" => Commands { read: &["get"], write: &["eval", "incrby", "pexpire", "pttl"], scripted: true },
        "deliver" | "revoked" | "invalidated" => {
            Commands { read: &["ssubscribe", "subscribe"], write: &["publish", "spublish"], scripted: false }
        }
        _ => return None,
    })
}

/// The command that gives a user this and nothing else, or `None` if the grant has no key family. A user that is there
/// keeps its password; a new one has none yet, and cannot log in before it is given one.
pub fn redis_acl(grant: &Grant, user: &str, servers: RedisServers) -> Option<String> {
    let mut names: Vec<_> = grant.families().map(|(name, _)| name).collect();
    names.dedup();
    if names.is_empty() {
        return None;
    }
    // To see that the server is alive; of a cluster also its nodes, and whether they know sharded channels.
    let mut allowed = BTreeSet::from(["ping"]);
    match servers {
        RedisServers::Single => {}
        RedisServers::NumberedDatabase => allowed.extend(["select"]),
        RedisServers::Cluster => allowed.extend(["cluster|slots", "command|info"]),
    }
    let mut patterns = Vec::new();
    for name in names {
        let reads = grant.allows_family(name, Access::Read);
        let writes = grant.allows_family(name, Access::Write);
        // A family that the connector does not know has no commands either.
        let (Some(family), Some(commands)) = (family(name), commands(name)) else { continue };
        allowed.extend(commands.read.iter().filter(|_| reads));
        allowed.extend(commands.write.iter().filter(|_| writes));
        patterns.extend(pattern(family, reads, writes, commands.scripted));
    }
    let allowed: String = allowed.iter().map(|command| format!(" +{command}")).collect();
    let patterns: String = patterns.iter().map(|pattern| format!(" {pattern}")).collect();
    Some(format!("ACL SETUSER {user} on resetkeys resetchannels -@all{patterns}{allowed}"))
}

fn pattern(family: &Family, reads: bool, writes: bool, scripted: bool) -> Option<String> {
    let pattern = family.pattern;
    match (family.kind, reads, writes) {
        (_, false, false) => None,
        (FamilyKind::Channels, ..) => Some(format!("&{pattern}")),
        (FamilyKind::Keys, true, false) => Some(format!("%R~{pattern}")),
        (FamilyKind::Keys, false, true) if !scripted => Some(format!("%W~{pattern}")),
        (FamilyKind::Keys, ..) => Some(format!("~{pattern}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::families::FAMILIES;

    fn rule(grant: &Grant) -> Option<String> {
        redis_acl(grant, "courant-fanout", RedisServers::Single)
    }

    const START: &str = "ACL SETUSER courant-fanout on resetkeys resetchannels -@all";

    #[test]
    fn without_a_family_there_is_no_rule() {
        assert_eq!(rule(&Grant::nothing().table("connection", Access::Read)), None);
    }

    #[test]
    fn who_reads_cannot_write() {
        let grant = Grant::nothing().family("connection", Access::Read);
        assert_eq!(rule(&grant).unwrap(), format!("{START} %R~connection:* +get +ping"));
    }

    #[test]
    fn who_writes_without_scripts_cannot_read() {
        let grant = Grant::nothing().family("user_presence", Access::Write);
        assert_eq!(rule(&grant).unwrap(), format!("{START} %W~user_presence:* +ping +set"));
    }

    #[test]
    fn keys_of_scripts_are_open_for_both() {
        let grant = Grant::nothing().family("rate", Access::Write);
        assert_eq!(rule(&grant).unwrap(), format!("{START} ~rate:* +eval +incrby +pexpire +ping +pttl"));
    }

    #[test]
    fn channels_are_heard_or_spoken_to() {
        let listening = Grant::nothing().family("deliver", Access::Read);
        assert_eq!(
            rule(&listening).unwrap(),
            format!("{START} &gateway:*:deliver +ping +ssubscribe +subscribe")
        );
        let speaking = Grant::nothing().family("deliver", Access::Write);
        assert_eq!(rule(&speaking).unwrap(), format!("{START} &gateway:*:deliver +ping +publish +spublish"));
    }

    #[test]
    fn a_cluster_may_be_asked_for_its_nodes_and_a_database_chosen() {
        let grant = Grant::nothing().family("connection", Access::Read);
        let rule = redis_acl(&grant, "u", RedisServers::NumberedDatabase).unwrap();
        assert!(rule.ends_with(" %R~connection:* +get +ping +select"), "{rule}");
        let rule = redis_acl(&grant, "u", RedisServers::Cluster).unwrap();
        assert!(rule.ends_with(" +cluster|slots +command|info +get +ping"), "{rule}");
    }

    #[test]
    fn every_family_has_its_commands() {
        for family in &FAMILIES {
            let commands = commands(family.name).expect(family.name);
            assert!(!commands.read.is_empty() && !commands.write.is_empty(), "{}", family.name);
        }
    }
}
