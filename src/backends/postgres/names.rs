//! Queue and type names as small numbers, which rows and indexes contain.
//!
//! Names are never deleted, so what a server has read stays right. A name that it does not know may
//! be another server's.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    str::FromStr,
    sync::Arc,
};

use parking_lot::RwLock;
use tokio_postgres::Row;

use super::{connect::Readers, row};
use tidegate_core::{
    job::{QueueName, TypeName},
    port::{StoreError, job_store::ListQuery},
};

/// How often a name is inserted again after another server took its number.
const MAX_REPEATS: usize = 20;

/// The names of one table.
#[derive(Clone, Debug)]
struct Interned<N> {
    numbers: HashMap<N, i32>,
    names: HashMap<i32, N>,
}

impl<N> Default for Interned<N> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), names: HashMap::new() }
    }
}

/// All names that this server has read.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    queues: Interned<QueueName>,
    types: Interned<TypeName>,
}

impl<N: Clone + Eq + Hash + FromStr> Interned<N> {
    fn read(rows: &[Row]) -> Result<Self, StoreError> {
        let mut all = Self::default();
        for row in rows {
            let (n, name): (i32, &str) = (row::column(row, 0)?, row::column(row, 1)?);
            let name: N = name.parse().map_err(|_| {
                StoreError::corrupt(format!("the name {name:?} of number {n} is damaged"))
            })?;
            all.numbers.insert(name.clone(), n);
            all.names.insert(n, name);
        }
        Ok(all)
    }
}

impl Known {
    /// The number of a queue, if it has one.
    pub(super) fn queue(&self, name: &QueueName) -> Option<i32> {
        self.queues.numbers.get(name).copied()
    }

    /// The number of a type, if it has one.
    pub(super) fn job_type(&self, name: &TypeName) -> Option<i32> {
        self.types.numbers.get(name).copied()
    }

    /// The numbers of `types`, ascending, except types without one.
    pub(super) fn types(&self, types: &[TypeName]) -> Vec<i32> {
        let mut numbers: Vec<i32> = types.iter().filter_map(|name| self.job_type(name)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// The numbers of the queues and types whose jobs `query` may select.
    pub(super) fn selected(&self, query: &ListQuery) -> (HashSet<i32>, HashSet<i32>) {
        let queues = self.queues.numbers.iter().filter(|(name, _)| query.asks_for_queue(name));
        let types = self.types.numbers.iter().filter(|(name, _)| query.asks_for_type(name));
        (queues.map(|(_, n)| *n).collect(), types.map(|(_, n)| *n).collect())
    }

    /// The queue of a number.
    pub(super) fn queue_name(&self, number: i32) -> Option<&QueueName> {
        self.queues.names.get(&number)
    }

    /// The type of a number.
    pub(super) fn type_name(&self, number: i32) -> Option<&TypeName> {
        self.types.names.get(&number)
    }
}

/// The names in the database, as far as this server has read them.
#[derive(Default)]
pub(super) struct Names(RwLock<Arc<Known>>);

/// A name that gets a number unless it has one: the table's own statement.
macro_rules! add {
    ($table:literal) => {
        concat!(
            "INSERT INTO ",
            $table,
            " (n, name) SELECT coalesce((SELECT max(n) FROM ",
            $table,
            "), 0) + row_number() OVER (ORDER BY w.name), w.name FROM unnest($1::text[]) w(name) \
             WHERE NOT EXISTS (SELECT FROM ",
            $table,
            " k WHERE k.name = w.name) ON CONFLICT DO NOTHING"
        )
    };
}

const QUEUES: &str = "SELECT n, name FROM queue_names ORDER BY n";
const TYPES: &str = "SELECT n, name FROM type_names ORDER BY n";
const ADD_QUEUES: &str = add!("queue_names");
const ADD_TYPES: &str = add!("type_names");

/// The statements above, whose plans are tested.
#[cfg(test)]
pub(super) const ALL: [&str; 4] = [QUEUES, TYPES, ADD_QUEUES, ADD_TYPES];

impl Names {
    /// What is known now.
    pub(super) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.0.read())
    }

    /// Reads all names.
    pub(super) async fn refresh(&self, readers: &Readers) -> Result<Arc<Known>, StoreError> {
        let queues = readers.query(QUEUES, &[]).await?;
        let types = readers.query(TYPES, &[]).await?;
        let queues = Interned::read(&queues)?;
        let known = Arc::new(Known { queues, types: Interned::read(&types)? });
        let mut current = self.0.write();
        // Of two reads at once, the later one knows more.
        if current.queues.numbers.len() + current.types.numbers.len()
            <= known.queues.numbers.len() + known.types.numbers.len()
        {
            *current = Arc::clone(&known);
        }
        Ok(known)
    }

    /// What is known, after another read if one of these names is unknown.
    pub(super) async fn with<'a>(
        &self,
        readers: &Readers,
        queues: impl IntoIterator<Item = &'a QueueName> + Send,
        types: impl IntoIterator<Item = &'a TypeName> + Send,
    ) -> Result<Arc<Known>, StoreError> {
        let known = self.known();
        let has_all = queues.into_iter().all(|name| known.queue(name).is_some())
            && types.into_iter().all(|name| known.job_type(name).is_some());
        if has_all { Ok(known) } else { self.refresh(readers).await }
    }

    /// What is known, after these names have got numbers.
    pub(super) async fn interned(
        &self,
        readers: &Readers,
        queues: &HashSet<&QueueName>,
        types: &HashSet<&TypeName>,
    ) -> Result<Arc<Known>, StoreError> {
        let mut known = self.known();
        for _ in 0..MAX_REPEATS {
            let new_queues: Vec<&str> = queues
                .iter()
                .filter(|name| known.queue(name).is_none())
                .map(|name| name.as_str())
                .collect();
            let new_types: Vec<&str> = types
                .iter()
                .filter(|name| known.job_type(name).is_none())
                .map(|name| name.as_str())
                .collect();
            if new_queues.is_empty() && new_types.is_empty() {
                return Ok(known);
            }
            if !new_queues.is_empty() {
                readers.query(ADD_QUEUES, &[&new_queues]).await?;
            }
            if !new_types.is_empty() {
                readers.query(ADD_TYPES, &[&new_types]).await?;
            }
            // Another server may have taken the number for another name.
            known = self.refresh(readers).await?;
        }
        Err(StoreError::unavailable("new names could not be stored"))
    }
}
