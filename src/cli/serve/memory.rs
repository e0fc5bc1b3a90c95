//! What this process holds of the machine's memory and need not: code that was run once, and heap that was freed.

use std::{ffi::c_void, fs};

use nix::sys::mman::{MmapAdvise, madvise};

/// The program's and the libraries' code and constants, as they were loaded.
pub struct Code(Vec<Mapped>);

/// Addresses at which a file is mapped as it lies on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapped {
    start: usize,
    bytes: usize,
}

impl Code {
    /// What is loaded now. To be asked once, by the start: what a program starts with is never unmapped, and its relocations are fresh.
    pub fn loaded() -> Self {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        Self(unchanged(&maps).collect())
    }

    /// Takes it out of this process's memory, and says how many bytes of addresses that was; what goes on being used comes back page by
    /// page, from the system's cache of the files.
    ///
    /// A start builds routes, documents and settings, and so touches most of the program; each kind of request touches a part of its own,
    /// and the system maps 64 KB around each page. Without this all that was ever run stays.
    pub fn unload(&self) -> usize {
        self.0.iter().filter(|mapped| unload(**mapped)).map(|mapped| mapped.bytes).sum()
    }
}

/// Where files are mapped as they lie on the disk, by what `/proc/self/smaps` says: cannot be written, and no page differs, be it in memory
/// or swapped out.
///
/// ```text
/// 55d0c000-55d0f000 r-xp 00001000 fe:01 131 /usr/bin/tidegate
/// Anonymous:             0 kB
/// Swap:                  0 kB
/// ```
fn unchanged(maps: &str) -> impl Iterator<Item = Mapped> + '_ {
    let mut mapped = None;
    maps.lines().filter_map(move |line| {
        let differs = |kilobytes: &str| kilobytes.trim() != "0 kB";
        if line.contains('/') {
            mapped = read_only(line);
        } else if line.strip_prefix("Anonymous:").is_some_and(differs) {
            mapped = None;
        } else if let Some(kilobytes) = line.strip_prefix("Swap:") {
            return mapped.take().filter(|_| !differs(kilobytes));
        }
        None
    })
}

/// Where a file is mapped, and how much of it, if that cannot be written.
fn read_only(line: &str) -> Option<Mapped> {
    let mut parts = line.split_whitespace();
    let (start, end) = parts.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    let fixed = matches!(parts.next()?, "r--p" | "r-xp");
    fixed.then_some(Mapped { start, bytes: end.checked_sub(start)? })
}

fn unload(mapped: Mapped) -> bool {
    let Some(start) = std::ptr::NonNull::new(mapped.start as *mut c_void) else {
        return false;
    };
    #[allow(
        unsafe_code,
        reason = "the pages are mapped from files and were never written: what is read again is the same"
    )]
    // SAFETY: a private mapping that is not writable, and of which no page differs from the file, reads the same after its pages were
    // dropped: the system itself drops such pages when memory is short. What was relocated differs, and is not among them; and what the
    // program started with is mapped as long as it runs.
    let unloaded = unsafe { madvise(start, mapped.bytes, MmapAdvise::MADV_DONTNEED) };
    unloaded.is_ok()
}

/// Gives the system back what was freed of the heap. Without this, a page that was once used stays, with all that a start or a busy hour took:
/// the C library keeps a heap for each thread, and gives back only what is free at its end.
#[cfg(target_env = "gnu")]
pub fn trim_heap() {
    #[allow(unsafe_code, reason = "a function of the C library without a safe name")]
    // SAFETY: it may be called at any time by any thread: it takes each heap's lock, and touches only what is free.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Other C libraries than GNU's cannot be told to.
#[cfg(not(target_env = "gnu"))]
pub const fn trim_heap() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_or_may_be_stays() {
        let found = |mode: &str, path: &str, anonymous: u32, swap: u32| {
            let maps = format!(
                "55d0c000-55d0f000 {mode} 00001000 fe:01 131 {path}\nRss: 12 kB\nAnonymous:    {anonymous} kB\nSwap:    {swap} kB\nLocked: 0 kB\n"
            );
            unchanged(&maps).next()
        };
        let whole = Some(Mapped { start: 0x55d0_c000, bytes: 0x3000 });
        assert_eq!(
            [found("r-xp", "/usr/bin/tidegate", 0, 0), found("r--p", "/usr/lib/libc.so.6", 0, 0)],
            [whole, whole]
        );
        assert_eq!(found("r--p", "/usr/bin/tidegate", 4, 0), None, "it was relocated");
        assert_eq!(
            found("r--p", "/usr/bin/tidegate", 0, 4),
            None,
            "it was relocated, and swapped out"
        );
        assert_eq!(found("rw-p", "/usr/bin/tidegate", 0, 0), None);
        assert_eq!(found("r--s", "/data/tidegate.db-shm", 0, 0), None, "others write it");
        assert_eq!(found("r-xp", "[vdso]", 0, 0), None, "no file");
    }

    #[test]
    fn code_that_is_unloaded_comes_back_when_it_is_run() {
        assert!(Code::loaded().unload() > 1 << 20, "these tests have more code than that");
        assert_eq!(format!("{} runs", "it"), "it runs");
    }
}
