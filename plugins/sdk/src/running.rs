//! The weights of the running set.

use std::collections::BTreeMap;

use crate::{Dimension, Running};

impl Running {
    /// The running weight by the values of a dimension.
    pub fn weights(&self, by: &Dimension) -> BTreeMap<String, u64> {
        let mut weights = BTreeMap::new();
        // Inserted one by one: `collect` sorts first, which takes 5 KB of code.
        for group in self.groups(by) {
            weights.insert(group.value, group.weight);
        }
        weights
    }
}
