//! Queue and type names as small numbers, which rows and indexes contain.

use std::collections::HashMap;

use rusqlite::Connection;

use super::error::Failure;
use tidegate_core::job::{QueueName, TypeName};

/// All queue and type names that were ever stored. The tables are not pruned, because names are
/// few.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    queues: Interned<QueueName>,
    types: Interned<TypeName>,
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

    fn read(db: &Connection, sql: &str) -> Result<Self, Failure> {
        let mut all = Self::default();
        let mut statement = db.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let name: String = row.get(1)?;
            let name =
                name.parse().map_err(|_| Failure::corrupt(format!("{name:?} is not a name")))?;
            all.add(name, row.get(0)?);
        }
        Ok(all)
    }
}

impl Names {
    /// Reads the stored names.
    pub(super) fn read(db: &Connection) -> Result<Self, Failure> {
        let queues = Interned::read(db, "SELECT n, name FROM queue_names")?;
        let types = Interned::read(db, "SELECT n, name FROM type_names")?;
        Ok(Self { queues, types })
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
