//! The archives: what is in them, what machine a binary is for, and how fast it starts.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use super::{Checked, own_triple, process::Running, unpack};
use crate::release::{archives, archives::output, target::TARGETS};

/// Starts of the program. The first one reads the file from the disk and is not counted.
const STARTS: usize = 21;
/// Longest time of a start that passes.
const MAX_START: Duration = Duration::from_millis(50);

/// Checks that each archive has all of its files, and a binary for its machine.
pub fn check(checked: &Checked) -> Result<String, String> {
    let mut found = Vec::new();
    for target in &TARGETS {
        let name = archives::name(target.triple);
        let Ok(bytes) = checked.file(&name) else { continue };
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        unpack(bytes, folder.path())?;
        let inner = folder.path().join(format!("tidegate-{}", target.triple));
        for file in [
            "tidegate",
            "LICENSE",
            "README.md",
            "CHANGELOG.md",
            "THIRD-PARTY-LICENSES.txt",
            "completions/tidegate.bash",
            "completions/_tidegate",
            "completions/tidegate.fish",
            "man/man1/tidegate.1",
            "man/man1/tidegate-serve.1",
        ] {
            let size = std::fs::metadata(inner.join(file)).map_or(0, |file| file.len());
            if size == 0 {
                return Err(format!("{name} lacks {file}"));
            }
        }
        let program = std::fs::read(inner.join("tidegate")).map_err(|error| error.to_string())?;
        if let Some(linux) = &target.linux {
            static_for(&program, linux.elf_machine).map_err(|why| format!("{name}: {why}"))?;
        }
        if target.runs_here() {
            let version = output(Command::new(inner.join("tidegate")).arg("--version"))?;
            let version = String::from_utf8_lossy(&version).trim().to_owned();
            if version != format!("tidegate {}", checked.release.version) {
                return Err(format!("{name} has {version}"));
            }
        }
        found.push(format!("{} {} MB", target.triple, program.len() / 1_000_000));
    }
    Ok(found.join(", "))
}

/// Checks that `program` is an ELF file for the machine, and needs no other file to start.
fn static_for(program: &[u8], machine: u16) -> Result<(), String> {
    // The header of ELF64, little-endian.
    let number = |at: usize, bytes: usize| {
        let field = program.get(at..at + bytes).ok_or("it ends within its header")?;
        Ok::<_, String>(
            field.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)),
        )
    };
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return Err("it is no 64-bit ELF file".into());
    }
    if number(18, 2)? != u64::from(machine) {
        return Err(format!("it is for machine {}, not {machine}", number(18, 2)?));
    }
    let (table, entry, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        const INTERPRETER: u64 = 3;
        if number((table + index * entry) as usize, 4)? == INTERPRETER {
            return Err("it is linked dynamically".into());
        }
    }
    Ok(())
}

/// Unpacks the program for this machine, and returns its path in `folder`.
pub fn own_program(checked: &Checked, folder: &Path) -> Result<PathBuf, String> {
    let triple = own_triple()?;
    unpack(checked.file(&archives::name(triple))?, folder)?;
    Ok(folder.join(format!("tidegate-{triple}/tidegate")))
}

/// Checks the time of a start: the median of `--version`, and the best of a server on a new data
/// directory until it listens. The disk, which other programs use too, decides about the latter; a
/// machine that is quiet for one start of twenty shows what the program itself needs.
pub fn starts(checked: &Checked) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let program = own_program(checked, folder.path())?;
    let version = times(|_| output(Command::new(&program).arg("--version")).map(|_| ()))?;
    let serve = times(|run| {
        let data = folder.path().join(format!("data-{run}"));
        let mut command = Command::new(&program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data);
        Running::start(&mut command)?.line_after(" on http://").map(|_| ())
    })?;
    judge(&version, &serve)
}

/// Judges the sorted times of `--version`, and of a server until it listens.
fn judge(version: &[Duration], serve: &[Duration]) -> Result<String, String> {
    let median = |times: &[Duration]| times[times.len() / 2];
    let milliseconds = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1000.0);
    let found = format!(
        "{} for --version; until a new server listens {} at best, {} as the median",
        milliseconds(median(version)),
        milliseconds(serve[0]),
        milliseconds(median(serve))
    );
    if median(version) > MAX_START || serve[0] > MAX_START { Err(found) } else { Ok(found) }
}

/// Returns the sorted times of [`STARTS`] runs, without that of the first.
#[allow(clippy::disallowed_methods, reason = "measures the time of a start")]
fn times(mut run: impl FnMut(usize) -> Result<(), String>) -> Result<Vec<Duration>, String> {
    let mut took = Vec::with_capacity(STARTS);
    for number in 0..STARTS {
        let began = Instant::now();
        run(number)?;
        took.push(began.elapsed());
    }
    took.remove(0);
    took.sort_unstable();
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file of two segments.
    fn elf(machine: u8, kinds: [u8; 2]) -> Vec<u8> {
        let mut file = vec![0; 64 + 2 * 56];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (file[18], file[32], file[54], file[56]) = (machine, 64, 56, 2);
        (file[64], file[64 + 56]) = (kinds[0], kinds[1]);
        file
    }

    #[test]
    fn a_start_is_judged_by_median_and_best() {
        let of = |times: [u64; 3]| times.map(Duration::from_millis);
        let fast = of([10, 20, 400]);
        let found = judge(&fast, &of([50, 90, 900])).unwrap();
        let expected = "20.0 ms for --version; until a new server listens 50.0 ms at best, 90.0 ms as the \
             median";
        assert_eq!(found, expected);
        assert!(judge(&fast, &of([51, 90, 900])).is_err(), "no server is fast");
        assert!(judge(&of([10, 51, 60]), &fast).is_err(), "most versions are slow");
    }

    #[test]
    fn a_dynamic_or_foreign_binary_is_refused() {
        assert_eq!(static_for(&elf(183, [1, 2]), 183), Ok(()));
        let why = |file: &[u8]| static_for(file, 62).unwrap_err();
        assert_eq!(why(&elf(183, [1, 1])), "it is for machine 183, not 62");
        assert_eq!(why(&elf(62, [1, 3])), "it is linked dynamically");
        assert_eq!(why(b"#!/bin/sh\n"), "it is no 64-bit ELF file");
        assert_eq!(why(&elf(62, [1, 2])[..100]), "it ends within its header");
    }
}
