//! How an update changes an item, as a small typed list: DynamoDB gets it as an expression string, the embedded
//! engine applies it.

use serde::Serialize;

use super::number::Number;
use super::value::{Item, Name, Value};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Update(Vec<Action>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Action {
    Set(Name, Value),
    /// Sets the attribute unless there is one.
    SetIfMissing(Name, Value),
    /// Adds to a number; a missing one counts as zero.
    Add(Name, Number),
    Remove(Name),
}

impl Action {
    pub fn attribute(&self) -> &Name {
        match self {
            Self::Set(name, _) | Self::SetIfMissing(name, _) | Self::Add(name, _) | Self::Remove(name) => {
                name
            }
        }
    }
}

impl Update {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn set(self, attribute: impl Into<Name>, value: impl Into<Value>) -> Self {
        self.and(Action::Set(attribute.into(), value.into()))
    }

    #[must_use]
    pub fn set_if_missing(self, attribute: impl Into<Name>, value: impl Into<Value>) -> Self {
        self.and(Action::SetIfMissing(attribute.into(), value.into()))
    }

    #[must_use]
    pub fn add(self, attribute: impl Into<Name>, number: impl Into<Number>) -> Self {
        self.and(Action::Add(attribute.into(), number.into()))
    }

    #[must_use]
    pub fn remove(self, attribute: impl Into<Name>) -> Self {
        self.and(Action::Remove(attribute.into()))
    }

    fn and(mut self, action: Action) -> Self {
        self.0.push(action);
        self
    }

    pub fn actions(&self) -> &[Action] {
        &self.0
    }

    /// The size of the values that it sets.
    pub(crate) fn size(&self) -> usize {
        let sizes = self.0.iter().map(|action| match action {
            Action::Set(_, value) | Action::SetIfMissing(_, value) => value.size(),
            Action::Add(..) | Action::Remove(_) => 0,
        });
        sizes.sum()
    }

    /// The item after the update, or in words why the update cannot apply to it. Attributes are read as they were
    /// before the update.
    pub fn apply(&self, mut item: Item) -> Result<Item, String> {
        for (index, action) in self.0.iter().enumerate() {
            let attribute = action.attribute();
            if self.0[..index].iter().any(|earlier| earlier.attribute() == attribute) {
                return Err(format!("the update names '{attribute}' twice"));
            }
            match action {
                Action::Set(name, value) => item.set(name.clone(), value.clone()),
                Action::SetIfMissing(name, value) => {
                    if item.get(name).is_none() {
                        item.set(name.clone(), value.clone());
                    }
                }
                Action::Add(name, number) => {
                    let sum = match item.get(name) {
                        None => *number,
                        Some(Value::Number(before)) => before
                            .checked_add(*number)
                            .map_err(|error| format!("adding to '{name}': {error}"))?,
                        Some(other) => {
                            return Err(format!("'{name}' is {} and not a number to add to", other.kind()));
                        }
                    };
                    item.set(name.clone(), sum);
                }
                Action::Remove(name) => {
                    item.remove(name);
                }
            }
        }
        Ok(item)
    }

    /// The attributes that the update names, with the values they have now.
    pub fn touched(&self, item: &Item) -> Item {
        let named = self.0.iter().map(Action::attribute);
        named.filter_map(|name| Some((name.clone(), item.get(name)?.clone()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_apply_together() {
        let update = Update::new()
            .set("a", "x")
            .set_if_missing("b", 1)
            .set_if_missing("c", 1)
            .add("n", 2)
            .remove("gone");
        let before = Item::new().with("b", 7).with("n", 40).with("gone", true).with("kept", 1);
        let after = update.apply(before).unwrap();
        assert_eq!(after, Item::new().with("a", "x").with("b", 7).with("c", 1).with("n", 42).with("kept", 1));
        assert_eq!(
            update.touched(&after),
            Item::new().with("a", "x").with("b", 7).with("c", 1).with("n", 42),
            "what was not named is not returned"
        );
        assert_eq!(Update::new().add("n", 5).apply(Item::new()).unwrap(), Item::new().with("n", 5));
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        let text = Item::new().with("n", "five");
        let message = Update::new().add("n", 1).apply(text).unwrap_err();
        assert_eq!(message, "'n' is text and not a number to add to");
        let message = Update::new().set("n", 1).add("n", 1).apply(Item::new()).unwrap_err();
        assert_eq!(message, "the update names 'n' twice");
    }
}
