//! Items and values to and from the SDK's attribute values, without loss.
//!
//! Tables and change streams have SDK crates of their own, each with its own type of the same shape, so
//! reading is written once and made for both.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;

use crate::store::{Item, Key, Name, StoreError, Value};

/// Attributes as the SDK has them.
pub(super) type Attributes = HashMap<String, AttributeValue>;

pub(super) fn to_attribute(value: Value) -> AttributeValue {
    match value {
        Value::Text(text) => AttributeValue::S(text.into()),
        Value::Number(number) => AttributeValue::N(number.to_string()),
        Value::Bytes(bytes) => AttributeValue::B(Blob::new(bytes)),
        Value::Bool(bool) => AttributeValue::Bool(bool),
        Value::Null => AttributeValue::Null(true),
        Value::List(values) => AttributeValue::L(values.into_iter().map(to_attribute).collect()),
        Value::Map(values) => {
            AttributeValue::M(values.into_iter().map(|(name, value)| (name, to_attribute(value))).collect())
        }
        Value::TextSet(set) => AttributeValue::Ss(set.into_iter().collect()),
        Value::NumberSet(set) => {
            AttributeValue::Ns(set.into_iter().map(|number| number.to_string()).collect())
        }
        Value::BytesSet(set) => AttributeValue::Bs(set.into_iter().map(Blob::new).collect()),
    }
}

pub(super) fn to_attributes(item: Item) -> Attributes {
    item.into_iter().map(|(name, value)| (name.into(), to_attribute(value))).collect()
}

pub(super) fn key_to_attributes(key: Key) -> Attributes {
    to_attributes(key.into_item())
}

macro_rules! reading {
    ($value_from:ident, $item_from:ident, $sdk:ident) => {
        /// The value, or that it cannot be one.
        fn $value_from(attribute: $sdk::types::AttributeValue) -> Result<Value, StoreError> {
            use $sdk::types::AttributeValue as A;
            let number = |text: String| {
                text.parse().map_err(|error| StoreError::Damaged(format!("a number attribute: {error}")))
            };
            let bytes = |blob: $sdk::primitives::Blob| bytes::Bytes::from(blob.into_inner());
            Ok(match attribute {
                A::S(text) => Value::from(text),
                A::N(text) => Value::Number(number(text)?),
                A::B(blob) => Value::Bytes(bytes(blob)),
                A::Bool(bool) => Value::Bool(bool),
                A::Null(_) => Value::Null,
                A::L(values) => Value::List(values.into_iter().map($value_from).collect::<Result<_, _>>()?),
                A::M(values) => Value::Map(
                    values
                        .into_iter()
                        .map(|(name, value)| Ok((name, $value_from(value)?)))
                        .collect::<Result<_, StoreError>>()?,
                ),
                A::Ss(set) => Value::TextSet(set.into_iter().collect()),
                A::Ns(set) => Value::NumberSet(set.into_iter().map(number).collect::<Result<_, _>>()?),
                A::Bs(set) => Value::BytesSet(set.into_iter().map(bytes).collect()),
                _ => {
                    return Err(StoreError::Damaged(
                        "an attribute of a kind this version does not know".into(),
                    ))
                }
            })
        }

        /// The item, or that what came back cannot be one.
        pub(super) fn $item_from(
            attributes: HashMap<String, $sdk::types::AttributeValue>,
        ) -> Result<Item, StoreError> {
            attributes.into_iter().map(|(name, value)| Ok((Name::from(name), $value_from(value)?))).collect()
        }
    };
}

reading!(value_from, item_from, aws_sdk_dynamodb);
reading!(changed_value_from, changed_item_from, aws_sdk_dynamodbstreams);

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::store::Number;

    fn any_number() -> impl Strategy<Value = Number> {
        prop_oneof![
            any::<i64>().prop_map(Number::from),
            any::<u64>().prop_map(Number::from),
            (any::<i64>(), -100i32..100)
                .prop_map(|(digits, exponent)| format!("{digits}e{exponent}").parse().unwrap()),
        ]
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..8).prop_map(Bytes::from);
        let leaf = prop_oneof![
            any::<String>().prop_map(Value::from),
            any_number().prop_map(Value::Number),
            bytes().prop_map(Value::Bytes),
            any::<bool>().prop_map(Value::Bool),
            Just(Value::Null),
            proptest::collection::btree_set(any::<String>(), 1..4).prop_map(Value::TextSet),
            proptest::collection::btree_set(any_number(), 1..4).prop_map(Value::NumberSet),
            proptest::collection::btree_set(bytes(), 1..4).prop_map(Value::BytesSet),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
                proptest::collection::btree_map(any::<String>(), inner, 0..4).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_value_survives_the_way_there_and_back(value in any_value()) {
            prop_assert_eq!(value_from(to_attribute(value.clone())).unwrap(), value);
        }
    }

    #[test]
    fn a_changed_item_is_read_like_a_stored_one() {
        use aws_sdk_dynamodbstreams::primitives::Blob;
        use aws_sdk_dynamodbstreams::types::AttributeValue as A;
        let attributes = HashMap::from([
            ("t".to_owned(), A::S("x".into())),
            ("n".to_owned(), A::N("1.50".into())),
            ("m".to_owned(), A::M(HashMap::from([("l".to_owned(), A::L(vec![A::Null(true)]))]))),
            ("b".to_owned(), A::Bs(vec![Blob::new([0, 1])])),
        ]);
        let expected = Item::new()
            .with("t", "x")
            .with("n", "1.5".parse::<Number>().unwrap())
            .with("m", Value::Map(BTreeMap::from([("l".to_owned(), Value::List(vec![Value::Null]))])))
            .with("b", Value::BytesSet(BTreeSet::from([Bytes::from_static(&[0, 1])])));
        assert_eq!(changed_item_from(attributes).unwrap(), expected);
    }

    #[test]
    fn what_is_no_number_is_damage() {
        let error = value_from(AttributeValue::N("many".into())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the stored data is damaged: a number attribute: 'many' is not a number"
        );
    }
}
