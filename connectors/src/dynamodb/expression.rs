//! Conditions, updates and key ranges as DynamoDB's expression strings.
//!
//! Names and values always go as placeholders, so that reserved words, dots and unusual characters in
//! attribute names work and nothing stored can change the meaning of an expression.

use std::collections::HashMap;
use std::ops::Bound;

use super::convert::{Attributes, to_attribute};
use crate::store::{Action, Comparison, Condition, Name, SortRange, Update, Value, Within};

/// Sets what every write with a condition has. A macro, since each of the SDK's builders is a type of its
/// own.
macro_rules! conditional {
    ($builder:expr, $table:expr, $condition:expr, $placeholders:expr) => {{
        let (names, values) = $placeholders.into_parts();
        $builder
            .table_name($table)
            .set_condition_expression($condition)
            .set_expression_attribute_names(names)
            .set_expression_attribute_values(values)
            .return_values_on_condition_check_failure(
                aws_sdk_dynamodb::types::ReturnValuesOnConditionCheckFailure::AllOld,
            )
    }};
}
pub(super) use conditional;

/// The placeholders of one request; its expressions share them.
#[derive(Debug, Default)]
pub(super) struct Placeholders {
    names: HashMap<String, String>,
    values: Attributes,
}

impl Placeholders {
    /// DynamoDB refuses names that no expression uses, and empty maps.
    pub(super) fn into_parts(self) -> (Option<HashMap<String, String>>, Option<Attributes>) {
        (Some(self.names).filter(|names| !names.is_empty()), Some(self.values).filter(|map| !map.is_empty()))
    }

    fn name(&mut self, attribute: &str) -> String {
        if let Some((known, _)) = self.names.iter().find(|(_, name)| *name == attribute) {
            return known.clone();
        }
        let placeholder = format!("#n{}", self.names.len());
        self.names.insert(placeholder.clone(), attribute.to_owned());
        placeholder
    }

    fn value(&mut self, value: Value) -> String {
        let placeholder = format!(":v{}", self.values.len());
        self.values.insert(placeholder.clone(), to_attribute(value));
        placeholder
    }

    pub(super) fn condition(&mut self, condition: &Condition) -> String {
        match condition {
            Condition::Exists(name) => format!("attribute_exists({})", self.name(name)),
            Condition::Missing(name) => format!("attribute_not_exists({})", self.name(name)),
            Condition::Compare { attribute, is, to } => {
                format!("{} {} {}", self.name(attribute), operator(*is), self.value(to.clone()))
            }
            Condition::All(all) => self.joined(all, "AND"),
            Condition::Any(any) => self.joined(any, "OR"),
            Condition::Not(condition) => format!("NOT ({})", self.condition(condition)),
        }
    }

    fn joined(&mut self, conditions: &[Condition], word: &str) -> String {
        match conditions {
            [] => {
                // The language has no `true` and `false`, so something that always or never holds.
                let name = self.name("-");
                format!("attribute_exists({name}) {} attribute_not_exists({name})", opposite(word))
            }
            [one] => self.condition(one),
            many => {
                let parts: Vec<_> = many.iter().map(|one| format!("({})", self.condition(one))).collect();
                parts.join(&format!(" {word} "))
            }
        }
    }

    /// `None` if the update names no attribute, which DynamoDB writes as no expression.
    pub(super) fn update(&mut self, update: &Update) -> Option<String> {
        let (mut set, mut remove, mut add) = (Vec::new(), Vec::new(), Vec::new());
        for action in update.actions() {
            let name = self.name(action.attribute());
            match action {
                Action::Set(_, value) => set.push(format!("{name} = {}", self.value(value.clone()))),
                Action::SetIfMissing(_, value) => {
                    set.push(format!("{name} = if_not_exists({name}, {})", self.value(value.clone())));
                }
                Action::Add(_, number) => add.push(format!("{name} {}", self.value((*number).into()))),
                Action::Remove(_) => remove.push(name),
            }
        }
        let clauses = [("SET", set), ("REMOVE", remove), ("ADD", add)];
        let clauses = clauses.into_iter().filter(|(_, parts)| !parts.is_empty());
        let text = clauses.map(|(word, parts)| format!("{word} {}", parts.join(", ")));
        Some(text.collect::<Vec<_>>().join(" ")).filter(|text| !text.is_empty())
    }

    /// One partition and a part of its sort keys. An excluded bound beside another one is let in here, since
    /// DynamoDB takes a single condition on the sort key; [`outside`] tells what to leave out of the answer.
    pub(super) fn key_condition(&mut self, partition: (&Name, &Value), range: Option<&SortRange>) -> String {
        let (name, value) = partition;
        let partition = format!("{} = {}", self.name(name), self.value(value.clone()));
        let Some(range) = range else { return partition };
        let name = self.name(&range.attribute);
        let part = match &range.within {
            Within::Prefix(prefix) => format!("begins_with({name}, {})", self.value(prefix.clone())),
            Within::Bounds(low, high) => match (low, high) {
                (Bound::Unbounded, Bound::Unbounded) => return partition,
                (Bound::Included(low), Bound::Unbounded) => format!("{name} >= {}", self.value(low.clone())),
                (Bound::Excluded(low), Bound::Unbounded) => format!("{name} > {}", self.value(low.clone())),
                (Bound::Unbounded, Bound::Included(high)) => {
                    format!("{name} <= {}", self.value(high.clone()))
                }
                (Bound::Unbounded, Bound::Excluded(high)) => format!("{name} < {}", self.value(high.clone())),
                (
                    Bound::Included(low) | Bound::Excluded(low),
                    Bound::Included(high) | Bound::Excluded(high),
                ) => {
                    format!("{name} BETWEEN {} AND {}", self.value(low.clone()), self.value(high.clone()))
                }
            },
        };
        format!("{partition} AND {part}")
    }
}

/// Whether a sort key that the key condition let in is one of its excluded bounds.
pub(super) fn outside(within: &Within, key: Option<&Value>) -> bool {
    let Within::Bounds(low, high) = within else { return false };
    [low, high].into_iter().any(|bound| matches!(bound, Bound::Excluded(value) if Some(value) == key))
}

/// Whether no key can be in the range, which DynamoDB would refuse instead of finding nothing.
pub(super) fn holds_nothing(within: &Within) -> bool {
    let Within::Bounds(low, high) = within else { return false };
    let (Bound::Included(low_value) | Bound::Excluded(low_value)) = low else { return false };
    let (Bound::Included(high_value) | Bound::Excluded(high_value)) = high else { return false };
    let both_included = matches!((low, high), (Bound::Included(_), Bound::Included(_)));
    match (low_value, high_value) {
        (Value::Text(low), Value::Text(high)) => empty(low.as_bytes(), high.as_bytes(), both_included),
        (Value::Number(low), Value::Number(high)) => empty(low, high, both_included),
        (Value::Bytes(low), Value::Bytes(high)) => empty(low, high, both_included),
        // Of different kinds: the server says what is wrong with that.
        _ => false,
    }
}

fn empty<T: Ord + ?Sized>(low: &T, high: &T, both_included: bool) -> bool {
    low > high || (low == high && !both_included)
}

fn operator(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Equal => "=",
        Comparison::NotEqual => "<>",
        Comparison::Less => "<",
        Comparison::LessOrEqual => "<=",
        Comparison::Greater => ">",
        Comparison::GreaterOrEqual => ">=",
    }
}

fn opposite(word: &str) -> &'static str {
    if word == "AND" { "OR" } else { "AND" }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::types::AttributeValue;

    use super::*;

    #[test]
    fn conditions_become_text_with_placeholders_only() {
        let mut placeholders = Placeholders::default();
        let condition = Condition::missing("size")
            .or(Condition::less("size", 9).and(Condition::Not(Box::new(Condition::equals("a.b", "x OR y")))));
        assert_eq!(
            placeholders.condition(&condition),
            "(attribute_not_exists(#n0)) OR ((#n0 < :v0) AND (NOT (#n1 = :v1)))"
        );
        let (names, values) = placeholders.into_parts();
        assert_eq!(
            names.unwrap(),
            HashMap::from([("#n0".into(), "size".into()), ("#n1".into(), "a.b".into())])
        );
        assert_eq!(values.unwrap()[":v1"], AttributeValue::S("x OR y".into()));
    }

    #[test]
    fn updates_are_grouped_by_clause() {
        let mut placeholders = Placeholders::default();
        let update = Update::new().add("n", 2).set("a", 1).remove("gone").set_if_missing("b", 3);
        assert_eq!(
            placeholders.update(&update).unwrap(),
            "SET #n1 = :v1, #n3 = if_not_exists(#n3, :v2) REMOVE #n2 ADD #n0 :v0"
        );
        assert_eq!(Placeholders::default().update(&Update::new()), None);
        let (names, values) = Placeholders::default().into_parts();
        assert!(names.is_none() && values.is_none(), "empty maps are refused");
    }

    #[test]
    fn ranges_take_one_condition_on_the_sort_key() {
        let text = |low, high| {
            let range = SortRange { attribute: "s".into(), within: Within::Bounds(low, high) };
            Placeholders::default().key_condition((&"p".into(), &"x".into()), Some(&range))
        };
        let (one, nine) = (Value::from(1), Value::from(9));
        assert_eq!(
            text(Bound::Excluded(one.clone()), Bound::Included(nine.clone())),
            "#n0 = :v0 AND #n1 BETWEEN :v1 AND :v2"
        );
        assert_eq!(text(Bound::Excluded(one.clone()), Bound::Unbounded), "#n0 = :v0 AND #n1 > :v1");
        assert_eq!(text(Bound::Unbounded, Bound::Included(nine.clone())), "#n0 = :v0 AND #n1 <= :v1");
        assert_eq!(text(Bound::Unbounded, Bound::Unbounded), "#n0 = :v0");

        let half_open = Within::Bounds(Bound::Excluded(one.clone()), Bound::Included(nine.clone()));
        assert!(outside(&half_open, Some(&one)));
        assert!(!outside(&half_open, Some(&nine)));
    }

    #[test]
    fn a_range_that_holds_nothing_is_known_as_such() {
        let within = |low, high| Within::Bounds(low, high);
        let (one, nine) = (Value::from(1), Value::from(9));
        assert!(holds_nothing(&within(Bound::Included(nine.clone()), Bound::Included(one.clone()))));
        assert!(holds_nothing(&within(Bound::Included(one.clone()), Bound::Excluded(one.clone()))));
        assert!(!holds_nothing(&within(Bound::Included(one.clone()), Bound::Included(one.clone()))));
        assert!(!holds_nothing(&within(Bound::Excluded(one.clone()), Bound::Unbounded)));
        assert!(!holds_nothing(&within(Bound::Excluded(one), Bound::Excluded(nine))));
    }
}
