//! What the process offers its stages: one value per type, such as the dead-letter store.
//!
//! The runtime is generic and cannot name what stages need, so they ask by type.

use std::any::{Any, TypeId};
use std::sync::Arc;

use rustc_hash::FxHashMap;

#[derive(Clone, Default)]
pub struct Services(Arc<FxHashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Services {
    /// Adds a service, replacing an earlier one of the same type.
    #[must_use]
    pub fn with<T: Send + Sync + 'static>(self, service: Arc<T>) -> Self {
        let mut all = (*self.0).clone();
        all.insert(TypeId::of::<T>(), service);
        Self(Arc::new(all))
    }

    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let service = self.0.get(&TypeId::of::<T>())?;
        Arc::clone(service).downcast().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_by_type() {
        let services = Services::default().with(Arc::new(7u8)).with(Arc::new(String::from("x")));
        assert_eq!(services.get::<u8>().as_deref(), Some(&7));
        assert_eq!(services.get::<u16>(), None);
    }
}
