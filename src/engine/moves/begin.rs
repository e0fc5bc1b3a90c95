//! The begin of a move, its end, and giving it up: what the marks allow.

use super::{Comparison, Mark, Move, MoveError, Role, Side, part::Position};
use tidegate_core::port::job_store::ItemKind;

/// A move that has begun.
#[derive(Debug)]
pub struct Begun {
    /// The mark of the target, and its version.
    pub(super) mark: Mark,
    pub(super) version: u64,
    /// Whether an earlier call has begun it.
    pub goes_on: bool,
}

impl Move {
    /// Marks both stores, or finds the marks of this move. `id` is a new random name.
    ///
    /// # Errors
    ///
    /// [`MoveError::Refused`] if a server uses one of the stores, if the source is empty, has requests of
    /// applications, open transactions that may have made some, or a bulk operation that is half done, or
    /// if the target holds anything but a part of this move. Then nothing has changed, except that the
    /// inbox of the source may be closed until a server starts there.
    pub async fn begin(&self, id: String) -> Result<Begun, MoveError> {
        let (from, to) = (&self.from, &self.to);
        let (source, target) = (Mark::read(from).await?, Mark::read(to).await?);
        match (source, target) {
            (Some((_, source)), Some((version, target)))
                if source.id == target.id
                    && source.role != Role::Target
                    && target.role == Role::Target =>
            {
                self.refuse_servers().await?;
                if target.position == Position::default() {
                    self.await_calls(to).await?;
                    to.remove_beginnings().await?;
                }
                Ok(Begun { mark: target, version, goes_on: true })
            }
            (None, None) => self.begin_new(id).await,
            // A call ended between the two marks.
            (Some((version, source)), None)
                if source.role == Role::Source && source.other == to.place =>
            {
                self.refuse_unless_empty().await?;
                self.check_source(version).await?;
                self.mark_target(source.id).await
            }
            (Some((_, Mark { role: Role::Moved, other, .. })), _) => {
                Err(MoveError::refused(format!(
                    "{} was moved to {other} already: to move what is still here, without any \
                     later change, first run `tidegate move --abort --from` with it",
                    from.place
                )))
            }
            (Some((_, Mark { role: Role::Source, other, .. })), _) => {
                Err(MoveError::refused(format!(
                    "{} is being moved to {other}: name that one to go on, or give that move up \
                     with `tidegate move --abort --from`",
                    from.place
                )))
            }
            (Some((_, Mark { role: Role::Target, other, .. })), _) => {
                Err(MoveError::refused(format!(
                    "{} has a part of what is being moved from {other}: finish that move first",
                    from.place
                )))
            }
            (None, Some((_, target))) => Err(MoveError::refused(format!(
                "{} is part of another move, with {}: give an empty target",
                to.place, target.other
            ))),
        }
    }

    async fn begin_new(&self, id: String) -> Result<Begun, MoveError> {
        let (from, to) = (&self.from, &self.to);
        if from.content().await?.is_none() {
            let place = &from.place;
            return Err(MoveError::refused(format!("{place} is empty: there is nothing to move")));
        }
        self.refuse_unless_empty().await?;
        // The mark would stop a server that runs.
        self.refuse_servers().await?;
        let (role, other) = (Role::Source, to.place.clone());
        let mark = Mark { id: id.clone(), role, other, position: Position::default() };
        let version = Mark::put(from, 0, Some(&mark)).await?;
        self.check_source(version).await?;
        self.mark_target(id).await
    }

    /// Checks the source, which has a mark of this version: no server starts, but one may have started
    /// just before. If it cannot be moved now, its mark is removed.
    async fn check_source(&self, version: u64) -> Result<(), MoveError> {
        let from = &self.from;
        let checked = async {
            self.await_calls(from).await?;
            self.refuse_servers().await?;
            from.refuse_operations().await?;
            from.refuse_requests().await
        };
        if let Err(error) = checked.await {
            Mark::put(from, version, None).await?;
            return Err(error);
        }
        Ok(())
    }

    /// Marks the target, which is empty.
    async fn mark_target(&self, id: String) -> Result<Begun, MoveError> {
        let (role, other) = (Role::Target, self.from.place.clone());
        let mark = Mark { id, role, other, position: Position::default() };
        let version = Mark::put(&self.to, 0, Some(&mark)).await?;
        self.await_calls(&self.to).await?;
        self.to.remove_beginnings().await?;
        Ok(Begun { mark, version, goes_on: false })
    }

    /// Ends a move whose sides were compared: the source says where its data is, and servers may use
    /// the target. A repeat after an interruption does the rest.
    ///
    /// # Errors
    ///
    /// [`MoveError::Refused`] if the sides differ, or a server or an application has used one of them.
    pub async fn finish(&self, begun: &Begun, comparison: &Comparison) -> Result<(), MoveError> {
        let (from, to) = (&self.from, &self.to);
        if !comparison.is_equal() {
            return Err(MoveError::refused(format!(
                "{} differs from {}, and no server may use either: give the move up with `tidegate \
                 move --abort --from`, and begin again with an empty target",
                to.place, from.place
            )));
        }
        self.refuse_servers().await?;
        from.refuse_requests().await?;
        let mut least = from.store.items_version().await.map_err(|error| from.failed(error))?;
        for kind in ItemKind::ALL {
            let versions = to.items(kind).await?.into_iter().map(|item| item.version);
            least = versions.fold(least, u64::max);
        }
        let completed = to.store.complete_move(least).await;
        completed.map_err(|error| to.failed(error))?;
        // Another move of the source may have begun since this one was given up.
        let source = Mark::read(from).await?.filter(|(_, source)| source.id == begun.mark.id);
        let Some((version, source)) = source else {
            let place = &from.place;
            return Err(MoveError::refused(format!("the move of {place} was given up meanwhile")));
        };
        if source.role != Role::Moved {
            let moved = Mark { role: Role::Moved, ..source };
            Mark::put(from, version, Some(&moved)).await?;
        }
        Mark::put(to, begun.version, None).await?;
        Ok(())
    }

    /// Compares both sides, and changes nothing. `on_progress` is called as the comparison goes on.
    ///
    /// # Errors
    ///
    /// [`MoveError::Refused`] if a server uses one of them.
    pub async fn check(&self, on_progress: super::OnProgress<'_>) -> Result<Comparison, MoveError> {
        self.refuse_servers().await?;
        self.compare(on_progress).await
    }
}

/// Removes the mark of a move from its source, so that a server may use it again. Returns the mark, if
/// it has one.
///
/// # Errors
///
/// [`MoveError::Refused`] for a target, whose data is incomplete.
pub async fn abort(side: &Side) -> Result<Option<Mark>, MoveError> {
    let Some((version, mark)) = Mark::read(side).await? else { return Ok(None) };
    if mark.role == Role::Target {
        return Err(MoveError::refused(format!(
            "{} has a part of what is being moved from {}, and no more: name the source, and \
             remove this one",
            side.place, mark.other
        )));
    }
    Mark::put(side, version, None).await?;
    Ok(Some(mark))
}
