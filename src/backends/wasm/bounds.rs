//! What one call may use. `plugins/wit/plugin.wit` says the same to authors, who rely on it.

use std::time::Duration;

pub use tidegate_core::port::policy::cut;
pub use tidegate_core::port::policy::{DATA_BYTES, MESSAGE_BYTES};
/// Bytes of a component; one made from Python has 18 million.
pub const COMPONENT_BYTES: usize = 32 << 20;

/// The longest a call takes.
pub const TIME: Duration = Duration::from_millis(250);
/// Instructions, roughly: a loop in Rust uses about 500 million of them in 40 to 70 ms.
pub const FUEL: u64 = 500_000_000;
/// Bytes of all its memories together.
pub const MEMORY: usize = 64 << 20;
/// Elements of one table.
pub const TABLE: usize = 100_000;
/// Bytes of stack. A thread that makes calls has at least twice as much left: less would end the process.
pub const STACK: usize = 512 << 10;
/// Calls of what it imports.
pub const HOST_CALLS: u32 = 100_000;
/// Bytes that it hands over at once: one answer, or the arguments of one import.
pub const OUTPUT: usize = 4 << 20;

/// Lines of its log that are kept.
pub const LOG_LINES: usize = 100;
/// Bytes of its log that are kept.
pub const LOG_BYTES: usize = 16 << 10;
/// Bytes of one line that are kept.
pub const LOG_LINE_BYTES: usize = 4 << 10;

/// Keys of a throttler's state.
pub const STATE_KEYS: usize = 64;
/// Bytes of one key of it.
pub const STATE_KEY_BYTES: usize = 128;
/// Bytes of all of it, keys and values.
pub const STATE_BYTES: usize = 16 << 10;

/// Running jobs in one answer of `running.page`.
pub const PAGE: u32 = 1000;
/// Running jobs in all answers of `running.page`.
pub const PAGED: u32 = 100_000;

/// Problems of a configuration that are kept.
pub const PROBLEMS: usize = 50;
/// Earlier failures that a retry strategy is shown.
pub const EARLIER: usize = 50;

/// Attributes that a plugin may ask the running set by.
pub const GROUPS: usize = 16;
/// Bytes of the JSON Schema of its configuration.
pub const SCHEMA_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_two_letters() {
        assert_eq!(cut("äöü".into(), 3), "ä");
        assert_eq!(cut("äöü".into(), 4), "äö");
        assert_eq!(cut("äöü".into(), 6), "äöü");
        assert_eq!(cut("ü".into(), 1), "");
    }

    #[test]
    fn the_contract_names_these_bounds() {
        let contract = include_str!("../../../plugins/wit/plugin.wit").replace("\n///", "");
        let contract =
            contract.split_whitespace().filter(|word| *word != "///").collect::<Vec<_>>().join(" ");
        for bound in [
            "250 ms",
            "500 million",
            "64 MiB of memory",
            "512 KiB of stack",
            "100,000 elements",
            "100,000 host calls",
            "4 MiB of output",
            "16 MiB of data",
            "component has at most 32 MiB",
            "100 lines and 16 KiB",
            "4 KiB of a line",
            "64 keys of 128 bytes, and 16 KiB in all",
            "at most 1000, however many",
            "100,000 in all",
            "first 50",
            "at most 50",
            "At most 16, of 1 to 64 bytes",
            "an object of at most 64 KiB",
            "At most 200 bytes",
            "At most 2000 bytes",
        ] {
            assert!(contract.contains(bound), "{bound}");
        }
        assert_eq!(
            (COMPONENT_BYTES, TABLE, LOG_LINES, LOG_BYTES, LOG_LINE_BYTES),
            (32 << 20, 100_000, 100, 16 << 10, 4 << 10)
        );
        assert_eq!(
            (STATE_KEYS, STATE_KEY_BYTES, STATE_BYTES, PAGE, PAGED),
            (64, 128, 16 << 10, 1000, 100_000)
        );
        assert_eq!(
            (PROBLEMS, EARLIER, GROUPS, SCHEMA_BYTES, MESSAGE_BYTES),
            (50, 50, 16, 64 << 10, 2000)
        );
        assert_eq!(DATA_BYTES, 16 << 20);
        assert_eq!(
            (TIME.as_millis(), FUEL, MEMORY, STACK, HOST_CALLS, OUTPUT),
            (250, 500_000_000, 64 << 20, 512 << 10, 100_000, 4 << 20)
        );
    }
}
