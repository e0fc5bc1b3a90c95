//! The bounds of one call. `plugins/wit/plugin.wit` promises them to authors.

use std::time::Duration;

pub use tidegate_core::port::policy::cut;
pub use tidegate_core::port::policy::{DATA_BYTES, MESSAGE_BYTES};
pub(crate) use tidegate_core::queue::plugin_state::{
    STATE_BYTES, STATE_KEY_BYTES, STATE_VALUE_BYTES,
};
/// Maximum bytes of a component; one from Python has 18 million.
pub const COMPONENT_BYTES: usize = 32 << 20;

/// Maximum processor time of a call.
pub const TIME: Duration = Duration::from_millis(250);
/// Units of fuel, roughly instructions: a loop in Rust uses 500 million of them in 40 to 70 ms.
pub const FUEL: u64 = 500_000_000;
/// Bytes of all memories together.
pub const MEMORY: usize = 64 << 20;
/// The part of [`MEMORY`] that the global variables of all instances of a component may take, in
/// bytes. It is checked before a component is compiled.
pub const GLOBALS: usize = 1 << 20;
/// Elements of one table.
pub const TABLE: usize = 100_000;
/// Bytes of stack. A thread that calls plugins needs at least twice as much: an overflow of its own
/// stack would end the process.
pub const STACK: usize = 512 << 10;
/// Calls of imports.
pub(crate) const HOST_CALLS: u32 = 100_000;
/// Bytes of one answer, or of the arguments of one import.
pub(crate) const OUTPUT: usize = 4 << 20;

/// Recorded lines of its log.
pub(crate) const LOG_LINES: usize = 100;
/// Recorded bytes of its log.
pub(crate) const LOG_BYTES: usize = 16 << 10;
/// Recorded bytes of one line.
pub(crate) const LOG_LINE_BYTES: usize = 4 << 10;

/// Changes of metrics in one call.
pub(crate) const METRIC_CHANGES: usize = 1000;
/// Series of the metrics of one version of a plugin that a process keeps.
pub(crate) const METRIC_SERIES: usize = 100;
/// Series of the metrics of all versions of a plugin that a process keeps.
pub(crate) const METRIC_SERIES_OF_VERSIONS: usize = 1000;
/// Bytes of the name, and of the label, of a metric.
pub(crate) const METRIC_NAME_BYTES: usize = 64;

/// Running jobs in one answer of `running.page`.
pub const PAGE: u32 = 1000;
/// Running jobs in all answers of `running.page`.
pub(crate) const PAGED: u32 = 100_000;

/// Reported problems of a configuration.
pub(crate) const PROBLEMS: usize = 50;
/// Bytes of the messages and details of all earlier failures in a throttler's call.
pub(crate) const EARLIER_BYTES: usize = 1 << 20;
/// Earlier failures of a job that a plugin receives.
pub(crate) const EARLIER: usize = 50;

/// Attributes by which a plugin may group the running set.
pub const GROUPS: usize = 16;
/// Attributes by which a plugin may group the waiting jobs.
pub const WAITING_GROUPS: usize = 2;
/// Bytes of the JSON Schema of a configuration.
pub(crate) const SCHEMA_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{port::policy::ENDED_DETAIL_BYTES, queue::waiting::MAX_WAITING_PARTITIONS};

    #[test]
    fn a_text_is_cut_between_two_characters() {
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
            "At most 256 KiB in all keys and values",
            "has more than 128 bytes",
            "has more than 16 KiB",
            "name has 1 to 64 bytes",
            "label at most 64 bytes",
            "at most 100 series of each version of a plugin and 1000 of all its versions",
            "a call has at most 1000 changes",
            "one call have at most 1 MiB",
            "messages and details of all of them have at most 1 MiB",
            "at most 1000, however many",
            "100,000 in all",
            "first 50",
            "the latest 50",
            "At most 16, of 1 to 64 bytes",
            "At most 2, of 1 to 64 bytes",
            "the 1000 partitions with most jobs",
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
            (STATE_KEY_BYTES, STATE_VALUE_BYTES, STATE_BYTES, PAGE, PAGED),
            (128, 16 << 10, 256 << 10, 1000, 100_000)
        );
        assert_eq!(
            (PROBLEMS, EARLIER, GROUPS, SCHEMA_BYTES, MESSAGE_BYTES),
            (50, 50, 16, 64 << 10, 2000)
        );
        assert_eq!((WAITING_GROUPS, MAX_WAITING_PARTITIONS), (2, 1000));
        assert_eq!(
            (METRIC_NAME_BYTES, METRIC_SERIES, METRIC_SERIES_OF_VERSIONS, METRIC_CHANGES),
            (64, 100, 1000, 1000)
        );
        assert_eq!((ENDED_DETAIL_BYTES, EARLIER_BYTES), (1 << 20, 1 << 20));
        assert_eq!(DATA_BYTES, 16 << 20);
        assert_eq!(
            (TIME.as_millis(), FUEL, MEMORY, STACK, HOST_CALLS, OUTPUT),
            (250, 500_000_000, 64 << 20, 512 << 10, 100_000, 4 << 20)
        );
    }
}
