//! What a holder may touch, and how.

use std::collections::{BTreeMap, BTreeSet};

use crate::store::Name;

/// What may be done to a table, topic or key family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Looking up by key and reading one partition of a table; reading a topic.
    Read,
    Write,
    /// Reading a whole table.
    Scan,
    /// Following a table's changes.
    Stream,
}

impl Access {
    /// As in "this handle may not …".
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Scan => "scan",
            Self::Stream => "follow the changes of",
        }
    }
}

type Names = BTreeMap<Name, BTreeSet<Access>>;

/// Tables, topics and key families with what may be done to each. Nothing unless it is added, and nobody is granted to make
/// or remove any: that is done with the connection itself, by `courant tables` and `courant topics`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grant {
    tables: Names,
    topics: Names,
    families: Names,
}

impl Grant {
    pub fn nothing() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn table(mut self, name: impl Into<Name>, access: Access) -> Self {
        self.tables.entry(name.into()).or_default().insert(access);
        self
    }

    #[must_use]
    pub fn topic(mut self, name: impl Into<Name>, access: Access) -> Self {
        self.topics.entry(name.into()).or_default().insert(access);
        self
    }

    #[must_use]
    pub fn family(mut self, name: impl Into<Name>, access: Access) -> Self {
        self.families.entry(name.into()).or_default().insert(access);
        self
    }

    /// Both together: a pipeline may do what any of its stages may.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        let pairs = [
            (&mut self.tables, other.tables),
            (&mut self.topics, other.topics),
            (&mut self.families, other.families),
        ];
        for (mine, theirs) in pairs {
            for (name, accesses) in theirs {
                mine.entry(name).or_default().extend(accesses);
            }
        }
        self
    }

    pub fn allows_table(&self, name: &str, access: Access) -> bool {
        allows(&self.tables, name, access)
    }

    pub fn allows_topic(&self, name: &str, access: Access) -> bool {
        allows(&self.topics, name, access)
    }

    pub fn allows_family(&self, name: &str, access: Access) -> bool {
        allows(&self.families, name, access)
    }

    /// For making access rules of it, in the order of the names.
    pub fn tables(&self) -> impl Iterator<Item = (&Name, Access)> {
        flat(&self.tables)
    }

    pub fn topics(&self) -> impl Iterator<Item = (&Name, Access)> {
        flat(&self.topics)
    }

    pub fn families(&self) -> impl Iterator<Item = (&Name, Access)> {
        flat(&self.families)
    }
}

fn allows(names: &Names, name: &str, access: Access) -> bool {
    names.get(name).is_some_and(|accesses| accesses.contains(&access))
}

fn flat(names: &Names) -> impl Iterator<Item = (&Name, Access)> {
    names.iter().flat_map(|(name, accesses)| accesses.iter().map(move |access| (name, *access)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_granted_by_itself() {
        let grant = Grant::nothing().table("messages", Access::Write).topic("messages", Access::Read);
        assert!(grant.allows_table("messages", Access::Write));
        assert!(!grant.allows_table("messages", Access::Read), "writing does not include reading");
        assert!(!grant.allows_topic("messages", Access::Write), "a topic is not the table of its name");
        assert!(!grant.allows_family("messages", Access::Read));
    }

    #[test]
    fn a_pipeline_may_what_its_stages_may() {
        let reader = Grant::nothing().table("chats", Access::Read).family("chat_members", Access::Write);
        let writer = Grant::nothing().table("chats", Access::Write).topic("t", Access::Read);
        let both = reader.and(writer);
        let tables: Vec<_> = both.tables().map(|(name, access)| (name.as_str(), access)).collect();
        assert_eq!(tables, [("chats", Access::Read), ("chats", Access::Write)]);
        assert_eq!((both.topics().count(), both.families().count()), (1, 1));
    }
}
