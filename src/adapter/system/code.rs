//! The program's own code in memory.

use std::{ffi::c_void, fs, ptr::NonNull};

use nix::sys::mman::{MmapAdvise, madvise};

/// Takes the program's code out of this process's memory, and says how many bytes of addresses that was; what goes on being
/// used comes back page by page, from the system's cache of the file.
///
/// Worth doing once, after the start: building routes, documents and settings touches most of the program, and serving touches a
/// fraction of it.
pub fn unload_code() -> usize {
    let (Ok(program), Ok(maps)) = (fs::read_link("/proc/self/exe"), fs::read_to_string("/proc/self/maps")) else { return 0 };
    let own = maps.lines().filter(|line| line.split_whitespace().nth(5).is_some_and(|path| program.as_os_str() == path));
    own.filter_map(code_in).filter(|(start, bytes)| unload(*start, *bytes)).map(|(_, bytes)| bytes).sum()
}

/// Where a line of `/proc/self/maps` has code, and how much: `55d0c000-55d0f000 r-xp 00001000 fe:01 131 /usr/bin/tidegate`.
fn code_in(line: &str) -> Option<(NonNull<c_void>, usize)> {
    let mut parts = line.split_whitespace();
    let (start, end) = parts.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    (parts.next()? == "r-xp").then_some((NonNull::new(start as *mut c_void)?, end.checked_sub(start)?))
}

fn unload(start: NonNull<c_void>, bytes: usize) -> bool {
    #[allow(unsafe_code, reason = "the pages are mapped from the program's file and were never written: what is read again is the same")]
    // SAFETY: a private mapping that is not writable and holds no relocations (Rust's code has none) reads the same after its
    // pages were dropped.
    let unloaded = unsafe { madvise(start, bytes, MmapAdvise::MADV_DONTNEED) };
    unloaded.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_is_unloaded_comes_back_when_it_is_run() {
        let text = "55d0c000-55d0f000 r-xp 00001000 fe:01 131 /usr/bin/tidegate";
        assert_eq!(code_in(text).map(|(start, bytes)| (start.as_ptr() as usize, bytes)), Some((0x55d0_c000, 0x3000)));
        assert_eq!(code_in(&text.replace("r-xp", "r--p")), None, "what is relocated stays");
        assert!(unload_code() > 1 << 20, "these tests have more code than that");
        assert_eq!("it runs".len(), 7);
    }
}
