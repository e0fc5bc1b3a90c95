//! Queue and type names as small numbers, which rows and indexes contain.

use std::collections::{HashMap, HashSet};

use rusqlite::Connection;

use super::{error::Failure, row::RawText};
use tidegate_core::{
    job::{QueueName, TypeName},
    port::job_store::ListQuery,
};

/// All queue and type names that were ever stored. The tables are not pruned, because names are
/// few.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    queues: Interned<QueueName>,
    types: Interned<TypeName>,
}

/// A row that contains no name, or that of another row, because it is damaged.
#[derive(Clone, Debug)]
pub(super) struct BadName {
    pub table: &'static str,
    pub n: i64,
    /// Its text, as far as it can be read.
    pub name: String,
}

#[derive(Clone, Debug)]
struct Interned<N> {
    numbers: HashMap<N, i64>,
    names: HashMap<i64, N>,
}

impl<N> Default for Interned<N> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), names: HashMap::new() }
    }
}

impl<N: Clone + Eq + std::hash::Hash + std::str::FromStr> Interned<N> {
    fn add(&mut self, name: N, number: i64) {
        self.numbers.insert(name.clone(), number);
        self.names.insert(number, name);
    }

    /// The names in `table`. Those that are none are added to `bad`.
    fn read(db: &Connection, table: &'static str, bad: &mut Vec<BadName>) -> Result<Self, Failure> {
        let mut all = Self::default();
        let mut statement = db.prepare(&format!("SELECT n, name FROM {table}"))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (n, name): (i64, RawText) = (row.get(0)?, row.get(1)?);
            let name = name.shown();
            match name.parse() {
                Ok(parsed) if !all.numbers.contains_key(&parsed) => all.add(parsed, n),
                _ => bad.push(BadName { table, n, name }),
            }
        }
        Ok(all)
    }
}

impl Names {
    /// The stored names.
    ///
    /// # Errors
    ///
    /// One of them is damaged, so it is not known to which queue or type its jobs belong.
    pub(super) fn read(db: &Connection) -> Result<Self, Failure> {
        let (names, bad) = Self::readable(db)?;
        match bad.first() {
            None => Ok(names),
            Some(BadName { table, name, .. }) => Err(Failure::corrupt(format!(
                "{table} has the damaged name {name:?}: `tidegate repair` restores it"
            ))),
        }
    }

    /// The stored names that can be read, and the others.
    pub(super) fn readable(db: &Connection) -> Result<(Self, Vec<BadName>), Failure> {
        let mut bad = Vec::new();
        let queues = Interned::read(db, "queue_names", &mut bad)?;
        let types = Interned::read(db, "type_names", &mut bad)?;
        Ok((Self { queues, types }, bad))
    }

    /// How many there are.
    #[cfg(feature = "bucket")]
    pub(super) fn len(&self) -> usize {
        self.queues.names.len() + self.types.names.len()
    }

    /// The number of a queue, if it has one.
    pub(super) fn queue(&self, name: &QueueName) -> Option<i64> {
        self.queues.numbers.get(name).copied()
    }

    /// The number of a type, if it has one.
    pub(super) fn job_type(&self, name: &TypeName) -> Option<i64> {
        self.types.numbers.get(name).copied()
    }

    /// The numbers of `types`, ascending, except types without one.
    pub(super) fn types(&self, types: &[TypeName]) -> Vec<i64> {
        let mut numbers: Vec<i64> = types.iter().filter_map(|name| self.job_type(name)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// The numbers of the queues and types whose jobs `query` may select.
    pub(super) fn selected(&self, query: &ListQuery) -> (HashSet<i64>, HashSet<i64>) {
        let queues = self.queues.numbers.iter().filter(|(name, _)| query.asks_for_queue(name));
        let types = self.types.numbers.iter().filter(|(name, _)| query.asks_for_type(name));
        (queues.map(|(_, n)| *n).collect(), types.map(|(_, n)| *n).collect())
    }

    /// The queue of a number.
    pub(super) fn queue_name(&self, number: i64) -> Option<&QueueName> {
        self.queues.names.get(&number)
    }

    /// The type of a number.
    pub(super) fn type_name(&self, number: i64) -> Option<&TypeName> {
        self.types.names.get(&number)
    }

    /// The number of a queue, stored if it is new; and whether it is new.
    pub(super) fn intern_queue(
        &mut self,
        db: &Connection,
        name: &QueueName,
    ) -> Result<(i64, bool), Failure> {
        if let Some(number) = self.queue(name) {
            return Ok((number, false));
        }
        db.prepare_cached("INSERT INTO queue_names (name) VALUES (?1)")?
            .execute([name.as_str()])?;
        self.queues.add(name.clone(), db.last_insert_rowid());
        Ok((db.last_insert_rowid(), true))
    }

    /// The number of a type, stored if it is new; and whether it is new.
    pub(super) fn intern_type(
        &mut self,
        db: &Connection,
        name: &TypeName,
    ) -> Result<(i64, bool), Failure> {
        if let Some(number) = self.job_type(name) {
            return Ok((number, false));
        }
        db.prepare_cached("INSERT INTO type_names (name) VALUES (?1)")?.execute([name.as_str()])?;
        self.types.add(name.clone(), db.last_insert_rowid());
        Ok((db.last_insert_rowid(), true))
    }
}
