//! What is otherwise on a server than in the model, attribute by attribute.
//!
//! Comparing is pure: a description comes in, differences come out, each with what is and what should be. What a server
//! does not tell (its `unknown` list) is no difference; a person who asks is told apart what could not be compared.
//! Tables and topics beyond the model are somebody else's and are not looked at.
//!
//! Rejected: changing what differs. Keys cannot be changed, an index takes hours to build, and fewer partitions do not
//! exist; somebody decides on each.

mod tables;
mod topics;

use std::fmt;

use serde::Serialize;

pub use tables::of_table;
pub use topics::of_topic;

/// One attribute that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Such as `table 'sessions'`.
    pub of: String,
    /// The attribute as people call it, such as `TTL`.
    pub attribute: String,
    pub is: String,
    pub should_be: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of, attribute, is, should_be } = self;
        write!(f, "{of}: {attribute} is {is}, and should be {should_be}")
    }
}

/// Collects the differences of one table or topic.
struct Comparison {
    of: String,
    found: Vec<Difference>,
}

impl Comparison {
    fn new(of: String) -> Self {
        Self { of, found: Vec::new() }
    }

    fn differs(&mut self, attribute: impl Into<String>, is: impl Into<String>, should_be: impl Into<String>) {
        let (attribute, is, should_be) = (attribute.into(), is.into(), should_be.into());
        self.found.push(Difference { of: self.of.clone(), attribute, is, should_be });
    }

    /// Compares one attribute, told in words.
    fn compare<T: PartialEq + ?Sized>(
        &mut self,
        attribute: impl Into<String>,
        is: &T,
        should_be: &T,
        words: impl Fn(&T) -> String,
    ) {
        if is != should_be {
            self.differs(attribute, words(is), words(should_be));
        }
    }
}
