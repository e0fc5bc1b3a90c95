//! What a tick of a queue with a ledger writes, in one statement, which is a transaction by itself.
//!
//! ```text
//!   BEGIN  items  ledgers  lives  ends  batches  batches  position  COMMIT    nine messages and answers
//!   items and ledgers and lives and ends, position of the log                 one of each
//!     └─ batches, records: after these
//! ```
//!
//! The workers of such a queue wait for one commit after the other. Postgres sends the answer to each
//! message by itself, and takes a snapshot for each statement.
//!
//! The parts are those of the statements for one table each, and have the same conditions. All of them see
//! the snapshot of the statement, so none may read what another one writes: a group names no record twice.
//! A part that waits for a rival compares again, as before. The guard needs the parts with conditions in
//! the order of [`PARTS`], so rows are locked in the order of all groups. Postgres executes the others
//! after it.
//!
//! The timeout of a statement is over before its commit begins, so none cancels the commit.

use tokio_postgres::types::ToSql;

use super::{
    parts::{
        counted, delete_batches, end_lives, put_batches, put_records, required, set_heads,
        set_lives,
    },
    plan::Call,
    statements::{
        DELETE_BATCHES, END_LIVES, PUT_BATCHES, PUT_RECORDS, REQUIRE, SET_HEADS, SET_LIVES,
    },
};

/// All parts. The answer has the position of the log in its second column. A connection whose log is not
/// [watched](super::wal) has no such statement: its database may not have the function.
pub(super) const SINGLE: &str = concat!(
    "WITH required AS (",
    required!("$1", "$2", "$3"),
    "), ",
    set_heads!("$5", "$6", "$7", "$8"),
    ", ",
    set_lives!(
        "$10",
        "$10::text[], $11::bigint[], $12::smallint[], $13::bigint[], $14::bigint[], $15::bigint[], \
         $16::bytea[]"
    ),
    ", ",
    end_lives!(
        "$18",
        "$18::text[], $19::bigint[], $20::smallint[], $21::bigint[], $22::bigint[], $23::bigint[], \
         $24::bytea[]"
    ),
    counted!(
        "SELECT queue, type, old, -1 FROM lives WHERE old <> new \
         UNION ALL SELECT queue, type, new, 1 FROM lives WHERE old <> new \
         UNION ALL SELECT queue, type, old, -1 FROM ends \
         UNION ALL SELECT queue, type, new, 1 FROM ends"
    ),
    ", put AS (",
    put_batches!("$26", "$27", "$28", "$29"),
    "), deleted AS (",
    delete_batches!("$30", "$31"),
    "), records_put AS (",
    put_records!("$32", "$33", "$34", "$35"),
    ") SELECT 1/((SELECT count(*) FROM required) = $4::bigint \
     AND (SELECT count(*) FROM new_heads) = $9::bigint \
     AND (SELECT count(*) FROM lives) = $17::bigint \
     AND (SELECT count(*) FROM ends) = $25::bigint)::int, \
     pg_current_wal_insert_lsn()::text"
);
/// The column of the position.
pub(super) const POSITION: usize = 1;
/// To be prepared when a connection opens whose log is watched.
pub(super) const ALL: [&str; 1] = [SINGLE];

/// How many statements it replaces at least. A part without rows costs a little, too.
const MIN_CALLS: usize = 3;

/// The type of a parameter.
#[derive(Clone, Copy)]
enum Kind {
    Texts,
    Ints,
    SmallInts,
    BigInts,
    Blobs,
    /// How many rows must be written.
    Rows,
}

/// The statements that have a part, in its order, with the parameters of each.
const PARTS: [(&str, &[Kind]); 7] = [
    (REQUIRE, &[Kind::Texts, Kind::Texts, Kind::BigInts, Kind::Rows]),
    (SET_HEADS, &[Kind::Ints, Kind::BigInts, Kind::Blobs, Kind::BigInts, Kind::Rows]),
    (SET_LIVES, LIFE),
    (END_LIVES, LIFE),
    (PUT_BATCHES, &[Kind::Ints, Kind::BigInts, Kind::BigInts, Kind::Blobs]),
    (DELETE_BATCHES, &[Kind::Ints, Kind::BigInts]),
    (PUT_RECORDS, &[Kind::Texts, Kind::Texts, Kind::BigInts, Kind::Blobs]),
];
const LIFE: &[Kind] = &[
    Kind::Texts,
    Kind::BigInts,
    Kind::SmallInts,
    Kind::BigInts,
    Kind::BigInts,
    Kind::BigInts,
    Kind::Blobs,
    Kind::Rows,
];

impl Kind {
    /// The value for a part that writes no row.
    fn none(self) -> Box<dyn ToSql + Sync + Send> {
        match self {
            Self::Texts => Box::new(Vec::<&str>::new()),
            Self::Ints => Box::new(Vec::<i32>::new()),
            Self::SmallInts => Box::new(Vec::<i16>::new()),
            Self::BigInts => Box::new(Vec::<i64>::new()),
            Self::Blobs => Box::new(Vec::<&[u8]>::new()),
            Self::Rows => Box::new(0_i64),
        }
    }
}

/// One statement in place of `calls`, if they write a ledger and nothing without a part.
///
/// # Errors
///
/// `calls`, if there is none.
pub(super) fn single(mut calls: Vec<Call<'_>>) -> Result<Call<'_>, Vec<Call<'_>>> {
    let has_part = |call: &Call<'_>| PARTS.iter().any(|(sql, _)| *sql == call.sql);
    let sets_ledger = calls.iter().any(|call| call.sql == SET_HEADS);
    if calls.len() < MIN_CALLS || !sets_ledger || !calls.iter().all(has_part) {
        return Err(calls);
    }
    let mut single = Call::new(SINGLE);
    for (sql, kinds) in PARTS {
        if let Some(index) = calls.iter().position(|call| call.sql == sql) {
            single.params.append(&mut calls.remove(index).params);
        } else {
            for kind in kinds {
                single.params.push(kind.none());
            }
        }
    }
    Ok(single)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statements all of whose parameters are 7.
    fn calls(all: &[&'static str]) -> Vec<Call<'static>> {
        let call = |&sql: &&'static str| {
            let part = PARTS.iter().find(|(part, _)| *part == sql);
            let number = part.map_or(1, |(_, kinds)| kinds.len());
            (0..number).fold(Call::new(sql), |call, _| call.value(7_i64))
        };
        all.iter().map(call).collect()
    }

    /// The parameters of a statement, as one character each: `-` is the value of a part without rows.
    fn shown(call: &Call<'_>) -> String {
        let shown = call.params.iter().map(|param| format!("{param:?}"));
        shown.map(|text| if text == "7" { '7' } else { '-' }).collect()
    }

    #[test]
    fn a_tick_is_one_statement() {
        for (all, values) in [
            (
                &[REQUIRE, SET_HEADS, SET_LIVES, END_LIVES, PUT_BATCHES, DELETE_BATCHES][..],
                "7777 77777 77777777 77777777 7777 77 ----",
            ),
            // It only claims, for a call that can be repeated.
            (
                &[REQUIRE, SET_HEADS, SET_LIVES, PUT_BATCHES, PUT_RECORDS][..],
                "7777 77777 77777777 -------- 7777 -- 7777",
            ),
            // It only settles. The order does not matter.
            (&[END_LIVES, REQUIRE, SET_HEADS][..], "7777 77777 -------- 77777777 ---- -- ----"),
        ] {
            let Ok(call) = single(calls(all)) else { panic!("{values} is several statements") };
            assert_eq!((call.sql, shown(&call)), (SINGLE, values.replace(' ', "")));
        }
    }

    #[test]
    fn other_groups_keep_their_statements() {
        for all in [
            // Few.
            &[SET_HEADS, PUT_BATCHES][..],
            // Reports and heartbeats of a queue without a ledger.
            &[REQUIRE, SET_LIVES, END_LIVES],
            &[REQUIRE, SET_HEADS, SET_LIVES, crate::postgres::statements::ADD_ALONE],
        ] {
            let Err(calls) = single(calls(all)) else { panic!("{all:?} is one statement") };
            assert_eq!(calls.iter().map(|call| call.sql).collect::<Vec<_>>(), all);
        }
    }

    #[test]
    fn each_parameter_has_its_number() {
        let number = PARTS.iter().map(|(_, kinds)| kinds.len()).sum::<usize>();
        for n in 1..=number {
            let text = format!("${n}");
            let is_used = SINGLE
                .split(&*text)
                .skip(1)
                .any(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()));
            assert!(is_used, "{text} is missing");
        }
        assert!(!SINGLE.contains(&format!("${}", number + 1)));
    }
}
