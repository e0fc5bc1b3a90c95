//! What a check of the database has found.

use tidegate_core::{error_chain::ErrorChain, port::StoreError};

use super::error::Failure;

/// What is damaged, by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The file: a page, or an index that differs from its table.
    File,
    /// The name of a queue or a type.
    Name {
        /// Its table.
        table: &'static str,
        /// Its number.
        n: i64,
    },
    /// A job in row `n`, or its body, cannot be read.
    Job {
        /// The row.
        n: i64,
        /// Its id, as far as it can be read.
        id: String,
    },
    /// A job whose columns differ from its record.
    Columns {
        /// The row.
        n: i64,
    },
    /// A body without a job.
    Body {
        /// The row of the job.
        n: i64,
    },
    /// The number of jobs by state.
    Counts,
    /// A correlation, unique or idempotency key.
    Key {
        /// Its kind.
        kind: i64,
        /// The number of its type.
        job_type: i64,
        /// The key.
        key: Vec<u8>,
    },
    /// A queue's ledger, or a batch that it names.
    Ledger {
        /// The number of the queue.
        queue: i64,
    },
    /// A batch that no ledger names.
    Batch {
        /// The number of the queue.
        queue: i64,
        /// Its id.
        id: i64,
    },
    /// An item of the configuration.
    Item {
        /// The row.
        n: i64,
        /// Its kind, as far as it can be read.
        kind: String,
        /// Its name, as far as it can be read.
        name: String,
    },
    /// A pending reply or a dead letter.
    Record {
        /// The row.
        n: i64,
    },
}

/// A damaged record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where.
    pub place: Place,
    /// What is wrong, for an operator.
    pub what: String,
}

impl Damage {
    /// The log lacks transactions that were on the disk.
    pub(super) fn of_log() -> Self {
        let what =
            "the log tidegate.db-wal is damaged: its transactions from there on are left out";
        Self { place: Place::File, what: what.to_owned() }
    }
}

/// An object that a job names: its key and its length.
pub type NamedObject = (String, u32);

/// What a check has found.
#[derive(Debug, Default)]
pub struct Verified {
    /// The damaged records.
    pub damage: Vec<Damage>,
    /// The jobs that were read.
    pub jobs: u64,
    /// The objects with the bodies and results of jobs, each with its job.
    pub objects: Vec<(String, NamedObject)>,
}

impl Verified {
    /// Adds damage.
    pub(super) fn add(&mut self, place: Place, what: impl Into<String>) {
        self.damage.push(Damage { place, what: what.into() });
    }

    /// Adds what `checked` has found damaged.
    ///
    /// # Errors
    ///
    /// Its error, if that is no damage: the disk or the memory has failed.
    pub(super) fn add_damage(
        &mut self,
        checked: Result<(), Failure>,
        place: impl FnOnce() -> Place,
    ) -> Result<(), Failure> {
        match checked {
            Err(Failure(StoreError::Corrupt(source))) => {
                self.add(place(), ErrorChain(&source).to_string());
                Ok(())
            }
            checked => checked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_the_machine_is_no_damage() {
        let mut found = Verified::default();
        let place = || Place::Job { n: 1, id: "one".into() };
        for code in [rusqlite::ffi::SQLITE_IOERR, rusqlite::ffi::SQLITE_NOMEM] {
            let failed = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
            found.add_damage(Err(failed.into()), place).unwrap_err();
        }
        assert_eq!(found.damage, []);
        found.add_damage(Ok(()), place).unwrap();
        found.add_damage(Err(Failure::corrupt("it is torn".into())), place).unwrap();
        assert_eq!(found.damage, [Damage { place: place(), what: "it is torn".into() }]);
    }
}
