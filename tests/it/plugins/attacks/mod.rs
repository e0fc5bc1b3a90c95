//! Attacks by components: each one is refused at the push, or costs one call of its own queue, with
//! the expected code and within the bounds of the contract.
//!
//! The attacks, and where the suite has them:
//!
//! | attack | tests |
//! |---|---|
//! | loops in `describe`, a start function, `check-config` | [`uploads`], [`checks`], `compile.rs`, `bounds.rs` |
//! | loops in `decide` and `on-failure`, of tail calls, of bulk operations | [`calls`], [`retries`], `bounds.rs` |
//! | recursion, direct and through a table | [`calls`], [`checks`], [`retries`], `bounds.rs` |
//! | bombs of memory, tables, lists, texts, problems, log, state, host calls | [`calls`], [`checks`], `bounds.rs`, `answers.rs` |
//! | invalid UTF-8 in answers, and in the arguments of each import | [`calls`], [`checks`], [`imports`], `answers.rs` |
//! | discriminants, misaligned pointers, pointers and lists past the memory | [`calls`], [`checks`], [`imports`], [`retries`] |
//! | allocators that return nonsense, call the host, or never return | [`calls`] |
//! | decisions: too few, too many, in the past, now, after 366 days, at 2^64 | `answers.rs` |
//! | answers of a retry strategy: times, data, attempts, timeouts | [`retries`], `answers.rs` |
//! | a changed state, then a trap | `bounds.rs` |
//! | what is not declared: groups, pages, data, ended and earlier attempts | `bounds.rs`, `host.rs` |
//! | bytes: ELF, compiled code, gzip, zeros, truncated, LEB128, 2^32 elements, bad names | [`uploads`], `compile.rs` |
//! | WASI, foreign imports and exports, versions, core modules | [`uploads`], `compile.rs` |
//! | proposals: refused, or allowed and bounded | [`uploads`] |
//! | numbers of functions, locals, tables, memories, instances, types; nesting, products of instances | [`uploads`], `compile.rs` |
//! | worst cases of the compiler | [`uploads`] (full check), `compile.rs` |
//! | forged lines and control characters in logs and reasons | `e2e::plugins::attacks`, `cli::safe` |
//! | names of plugins: `../x`, encoded, NUL, direction marks, 65 letters | `e2e::plugins::attacks` |
//! | 20 pushes of one name at once; pushes and deletions at once | `e2e::plugins::attacks` |
//! | versions that refuse a configuration or drop a role in use, deletion in use | `e2e::plugins::refusals` |
//! | hostile requests to the routes of plugins, hostile configurations | `e2e::plugins::requests`, `e2e::plugins::refusals` |
//! | a shadow that loops, a queue that loops next to others | `e2e::plugins::attacks`, `e2e::plugins::govern` |
//! | random bytes and mutations of components | `src/backends/wasm/fuzz.rs` |

mod calls;
mod checks;
mod imports;
mod retries;
mod uploads;

use tidegate_backends::wasm::compile::CompileError;
use tidegate_core::port::policy::{Fault, FaultKind};

use super::compiled;

/// The expected end of an attack.
#[derive(Clone, Copy)]
enum End {
    /// A fault of this kind whose message contains the text.
    Fault(FaultKind, &'static str),
    /// A fault by the number of its calls of imports, or by its time, whichever comes first.
    Flood,
    /// No fault: the contract permits it, within its bounds.
    Answer,
}

/// An attack, the uploaded bytes, and a part of the message of their refusal.
type Upload<'a> = (&'a str, Vec<u8>, &'a str);

/// The beginning of the message for a component without a role. It is refused for that before the
/// engine reads it.
const NO_ROLE: &str = "it is not a plugin";

/// Asserts that each upload is refused with a message that contains the text. Only an upload that
/// expects [`NO_ROLE`] may have no role, so that no other one is refused for that alone.
async fn all_are_refused(uploads: Vec<Upload<'_>>) {
    let mut wrong = Vec::new();
    for (attack, wasm, part) in uploads {
        assert!(!part.is_empty(), "{attack}: every message contains the empty text");
        let is_expected = |messages: &[String]| {
            let has_role = !messages.iter().any(|message| message.starts_with(NO_ROLE));
            messages.iter().any(|message| message.contains(part)) && has_role != (part == NO_ROLE)
        };
        match compiled(wasm).await {
            Err(CompileError::Refused(refused)) if is_expected(&refused.messages) => {}
            Err(error) => wrong.push(format!("{attack}: {error}")),
            Ok(_) => wrong.push(format!("{attack}: accepted")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Adds to `wrong` how an attack ended, unless it ended as expected.
fn compare(wrong: &mut Vec<String>, attack: &str, expected: End, ended: &Result<(), Fault>) {
    let good = match (expected, ended) {
        (End::Answer, Ok(())) => true,
        (End::Flood, Err(fault)) => {
            fault.kind == FaultKind::Timeout || fault.message.contains("more than 100000 times")
        }
        (End::Fault(kind, part), Err(fault)) => fault.kind == kind && fault.message.contains(part),
        _ => false,
    };
    if !good {
        wrong.push(format!("{attack}: {ended:?}"));
    }
}
