//! Errors of calls as faults, with messages for the plugin's author.

use wasmtime::{Store, Trap, WasmBacktrace};

use super::{
    bounds::{self, cut},
    contract::throttler::tidegate::plugin::log::Level,
    guest::{Denied, Guest},
};
use tidegate_core::port::policy::{Fault, FaultKind};

/// The fault of a plugin that returned an error.
pub(super) fn rejected(message: String) -> Fault {
    Fault { kind: FaultKind::Rejected, message: cut(message, bounds::MESSAGE_BYTES) }
}

/// The fault of a call in `store` that ended with `error`.
pub(super) fn of(error: &wasmtime::Error, store: &Store<Guest>) -> Fault {
    if let Some(Denied(fault)) = error.downcast_ref() {
        return fault.clone();
    }
    let (kind, message) = match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => (
            FaultKind::Timeout,
            format!("used more than {} million units of fuel", bounds::FUEL / 1_000_000),
        ),
        Some(Trap::Interrupt) => (
            FaultKind::Timeout,
            format!("used more than {} ms of processor time", bounds::TIME.as_millis()),
        ),
        Some(Trap::StackOverflow) => (
            FaultKind::ResourceExhausted,
            format!("used more than {} KiB of stack: endless recursion?", bounds::STACK >> 10),
        ),
        Some(trap) => (FaultKind::Trapped, trap_message(*trap, error, store)),
        None => untyped(error),
    };
    Fault { kind, message: cut(message, bounds::MESSAGE_BYTES) }
}

/// The message of a trap. A panic logs its message before it traps, which is more useful than the
/// trap.
fn trap_message(trap: Trap, error: &wasmtime::Error, store: &Store<Guest>) -> String {
    let last_error = store.data().log.iter().rev().find(|(level, _)| *level == Level::Error);
    if let (Trap::UnreachableCodeReached, Some((_, message))) = (trap, last_error) {
        return message.clone();
    }
    let frames =
        error.downcast_ref::<WasmBacktrace>().map(WasmBacktrace::frames).unwrap_or_default();
    let function = frames
        .iter()
        .find_map(|frame| frame.func_name())
        .map(|name| format!(" in `{name}`"))
        .unwrap_or_default();
    format!("trapped{function}: {trap}")
}

/// Errors of the engine without their own type. Their texts identify them, which tests check.
fn untyped(error: &wasmtime::Error) -> (FaultKind, String) {
    let (whole, cause) = (format!("{error:#}"), error.root_cause().to_string());
    if whole.contains("fuel allocated for hostcalls has been exhausted") {
        return (
            FaultKind::ResourceExhausted,
            format!("passed more than {} MiB to the host at once", bounds::OUTPUT >> 20),
        );
    }
    if whole.contains("resource limit exceeded") {
        return (FaultKind::ResourceExhausted, format!("has more parts than it may: {cause}"));
    }
    if whole.contains("type mismatch") || whole.contains("failed to convert function") {
        return (FaultKind::Unavailable, format!("does not fit the contract: {cause}"));
    }
    (FaultKind::InvalidAnswer, format!("passed a value to the host that cannot be read: {cause}"))
}
