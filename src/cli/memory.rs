//! Keeps resident memory small: few heaps, and no pages of code that ran once or of freed heap.
//!
//! To measure it on Linux: `tidegate bench memory`; docs/PERFORMANCE.md has the row and what each
//! part saves.

use std::{ffi::c_void, fs};

use nix::sys::mman::{MmapAdvise, madvise};

/// The code and constants of the program and its libraries.
pub struct Code(Vec<Mapped>);

/// Addresses at which a file is mapped unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapped {
    start: usize,
    bytes: usize,
}

impl Code {
    /// Returns the mappings of now. The start calls it once: the mappings of a start are never
    /// unmapped, and their relocations are done.
    pub fn loaded() -> Self {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        Self(unchanged(&maps).collect())
    }

    /// Drops the pages from resident memory and returns the bytes of addresses. Pages in use come
    /// back one by one from the system's file cache.
    ///
    /// A start builds routes, documents and settings, and so touches most of the program. Each kind
    /// of request touches its own part, and the system maps 64 KB around each page. Without this
    /// call all code that ever ran stays resident.
    pub fn unload(&self) -> usize {
        self.0.iter().filter(|mapped| unload(**mapped)).map(|mapped| mapped.bytes).sum()
    }
}

/// Parses `/proc/self/smaps` for unchanged file mappings: not writable, and without a private page,
/// in memory or swapped out.
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

/// Returns the addresses of a file mapping that is not writable.
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
        reason = "the pages are mapped from files and were never written: what is read again is \
                  the same"
    )]
    // SAFETY: a private mapping that is not writable, without a page that differs from the file,
    // reads the same after its pages are dropped: the system drops such pages when memory is short.
    // Relocated pages differ and are excluded. Mappings of the start stay mapped.
    let unloaded = unsafe { madvise(start, mapped.bytes, MmapAdvise::MADV_DONTNEED) };
    unloaded.is_ok()
}

/// Lets two processors share a heap, unless the environment sets a number of heaps
/// (`MALLOC_ARENA_MAX`). To be called before the process has threads.
///
/// By default each thread gets a heap of its own, up to eight for each processor, and each keeps
/// free pages. Threads keep small freed pieces to themselves, so they seldom wait for a heap.
#[cfg(target_env = "gnu")]
pub fn share_heaps() {
    #[allow(clippy::disallowed_methods, reason = "a setting of the C library, not of tidegate")]
    let is_set = std::env::var_os("MALLOC_ARENA_MAX").is_some();
    if is_set {
        return;
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let heaps = (processors / 2).clamp(1, 1024) as nix::libc::c_int;
    #[allow(unsafe_code, reason = "a function of the C library without a safe name")]
    // SAFETY: it sets a number of the allocator, and no other thread runs yet.
    unsafe {
        nix::libc::mallopt(nix::libc::M_ARENA_MAX, heaps);
    }
}

/// Other C libraries than GNU's have no such setting.
#[cfg(not(target_env = "gnu"))]
pub const fn share_heaps() {}

/// Returns freed heap to the system. Without it, the pages of a start or of a busy hour stay
/// resident: the C library keeps a heap for each thread and returns only the free end of it.
#[cfg(target_env = "gnu")]
pub fn trim_heap() {
    #[allow(unsafe_code, reason = "a function of the C library without a safe name")]
    // SAFETY: any thread may call it at any time: it takes the lock of each heap and touches only
    // free memory.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Other C libraries than GNU's have no such function.
#[cfg(not(target_env = "gnu"))]
pub const fn trim_heap() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_or_may_be_stays() {
        let found = |mode: &str, path: &str, anonymous: u32, swap: u32| {
            let maps = format!(
                "55d0c000-55d0f000 {mode} 00001000 fe:01 131 {path}\n\
                 Rss: 12 kB\n\
                 Anonymous:    {anonymous} kB\n\
                 Swap:    {swap} kB\n\
                 Locked: 0 kB\n"
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
