//! Changes of the table as writes of the port, for observers of a table.

use super::{
    batch::decode_batch,
    key::{self, SortKey},
    row,
    table::Item,
};
use tidegate_core::port::{
    StoreError,
    job_store::{Expect, ItemKind, Write},
};

/// The write that changed `before` into `after`; none for items that are internal to the store.
///
/// # Errors
///
/// [`StoreError::Corrupt`] if an item cannot be read.
pub fn write_of(before: Option<&Item>, after: Option<&Item>) -> Result<Option<Write>, StoreError> {
    let Some(item) = after.or(before) else {
        return Ok(None);
    };
    let Some((kind, name)) = item.key.p.split_once('#') else {
        return Ok(None);
    };
    let version =
        |item: Option<&Item>| item.and_then(|item| item.number(row::VERSION)).unwrap_or(0);
    Ok(match kind {
        "B" if matches!(SortKey::parse(&item.key.s), Some(SortKey::Row(_))) => {
            let is_removed = |item: &Item| row::job(item).map(|job| row::is_removed(item, &job));
            match (before, after) {
                // A sweep deletes the hidden row of a removed job.
                (Some(before), None) if is_removed(before)? => return Ok(None),
                (Some(before), Some(after)) if is_removed(after)? && !is_removed(before)? => {
                    let job = row::job(before)?;
                    return Ok(Some(Write::RemoveJob { id: job.id, was: job.life.revision }));
                }
                _ => {}
            }
            Some(match (before, after) {
                (None, _) => Write::AddJob(row::job(item)?),
                (Some(before), Some(after)) => Write::SetJob {
                    job: row::job(after)?,
                    was: row::job(before)?.life.revision,
                    all: true,
                },
                (Some(before), None) => {
                    let job = row::job(before)?;
                    Write::RemoveJob { id: job.id, was: job.life.revision }
                }
            })
        }
        "H" => match name.parse() {
            Ok(queue) => {
                let was = before.map_or(Expect::Absent, |item| Expect::Is(version(Some(item))));
                Some(Write::SetLedger { queue, ledger: row::decode_ledger(item)?, was })
            }
            Err(_) => None,
        },
        "G" => name
            .parse()
            .ok()
            .zip(key::batch_of(&item.key.s))
            .map(|(queue, id)| match after {
                Some(after) => decode_batch(after).map(|batch| Write::AddBatch(queue, batch)),
                None => Ok(Write::RemoveBatch(queue, id)),
            })
            .transpose()?,
        "C" => [ItemKind::Queue, ItemKind::Type, ItemKind::Plugin]
            .into_iter()
            .find(|kind| kind.as_str() == name)
            .map(|kind| Write::SetItem {
                kind,
                name: item.key.s.clone(),
                was: version(before),
                version: version(after),
                bytes: after.and_then(|item| {
                    let stored = item.bytes(row::RECORD)?;
                    row::item(item.key.s.clone(), kind, version(after), stored).bytes.ok()
                }),
            }),
        _ => None,
    })
}
