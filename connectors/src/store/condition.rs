//! What must hold for a write to happen, as a small typed tree: DynamoDB gets it as an expression string, the
//! embedded engine evaluates it.
//!
//! The meaning is DynamoDB's: a comparison with an attribute that is missing or of another kind does not hold,
//! except `NotEqual`, which does.

use std::cmp::Ordering;

use serde::Serialize;

use super::value::{Item, Name, Value};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Condition {
    Exists(Name),
    Missing(Name),
    Compare { attribute: Name, is: Comparison, to: Value },
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering == Ordering::Equal,
            Self::NotEqual => ordering != Ordering::Equal,
            Self::Less => ordering == Ordering::Less,
            Self::LessOrEqual => ordering != Ordering::Greater,
            Self::Greater => ordering == Ordering::Greater,
            Self::GreaterOrEqual => ordering != Ordering::Less,
        }
    }
}

impl Condition {
    pub fn exists(attribute: impl Into<Name>) -> Self {
        Self::Exists(attribute.into())
    }

    pub fn missing(attribute: impl Into<Name>) -> Self {
        Self::Missing(attribute.into())
    }

    pub fn compare(attribute: impl Into<Name>, is: Comparison, to: impl Into<Value>) -> Self {
        Self::Compare { attribute: attribute.into(), is, to: to.into() }
    }

    pub fn equals(attribute: impl Into<Name>, to: impl Into<Value>) -> Self {
        Self::compare(attribute, Comparison::Equal, to)
    }

    pub fn less(attribute: impl Into<Name>, to: impl Into<Value>) -> Self {
        Self::compare(attribute, Comparison::Less, to)
    }

    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match self {
            Self::All(mut all) => {
                all.push(other);
                Self::All(all)
            }
            one => Self::All(vec![one, other]),
        }
    }

    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match self {
            Self::Any(mut any) => {
                any.push(other);
                Self::Any(any)
            }
            one => Self::Any(vec![one, other]),
        }
    }

    /// Whether it holds for what is stored; no item is an item without attributes.
    pub fn holds(&self, item: Option<&Item>) -> bool {
        let attribute = |name: &Name| item.and_then(|item| item.get(name));
        match self {
            Self::Exists(name) => attribute(name).is_some(),
            Self::Missing(name) => attribute(name).is_none(),
            Self::Compare { attribute: name, is, to } => {
                match attribute(name).map(|value| compare(value, to)) {
                    Some(Some(ordering)) => is.holds(ordering),
                    Some(None) | None => *is == Comparison::NotEqual,
                }
            }
            Self::All(all) => all.iter().all(|condition| condition.holds(item)),
            Self::Any(any) => any.iter().any(|condition| condition.holds(item)),
            Self::Not(condition) => !condition.holds(item),
        }
    }
}

/// The order of two values of the same kind. Kinds without an order are equal or not comparable.
fn compare(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
        (Value::Number(a), Value::Number(b)) => Some(a.cmp(b)),
        (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
        (a, b) if a == b => Some(Ordering::Equal),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_follow_dynamodb() {
        let item = Item::new().with("n", 5).with("t", "b").with("flag", true);
        let holds = |condition: Condition| condition.holds(Some(&item));
        assert!(holds(Condition::less("n", 6)));
        assert!(!holds(Condition::less("n", 5)));
        assert!(holds(Condition::compare("n", Comparison::GreaterOrEqual, 5)));
        assert!(holds(Condition::compare("t", Comparison::Greater, "a")));
        assert!(holds(Condition::equals("flag", true)));
        // another kind, or nothing there
        assert!(!holds(Condition::less("n", "6")));
        assert!(!holds(Condition::less("absent", 6)));
        assert!(!holds(Condition::equals("absent", 6)));
        assert!(holds(Condition::compare("absent", Comparison::NotEqual, 6)));
        assert!(holds(Condition::compare("n", Comparison::NotEqual, "5")));
    }

    #[test]
    fn nothing_stored_is_an_item_without_attributes() {
        assert!(Condition::missing("a").holds(None));
        assert!(!Condition::exists("a").holds(None));
        let forward = Condition::missing("seq").or(Condition::less("seq", 9));
        assert!(forward.holds(None));
        assert!(forward.holds(Some(&Item::new().with("seq", 8))));
        assert!(!forward.holds(Some(&Item::new().with("seq", 9))));
        assert!(Condition::Not(Box::new(forward.and(Condition::exists("x")))).holds(None));
    }
}
