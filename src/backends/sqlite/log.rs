//! The write-ahead log, checked before SQLite reads it.
//!
//! ```text
//!   header │ frame  frame  commit │ frame  damaged  commit │ frame  commit
//!          └──── transaction ─────┘                        └ it was begun after the wait for the disk
//! ```
//!
//! SQLite ends the log at the first frame that is not as it was written, and says nothing: after a
//! crash that may be a transaction that was cut off, which no caller was answered for. But a
//! transaction is written only after the one before it is on the disk (`synchronous=FULL`). So if
//! frames follow the end of the damaged transaction, it was complete, and the damage came later.

use std::{
    fs::File,
    io::{BufReader, ErrorKind, Read},
    path::{Path, PathBuf},
};

/// Bytes of the header of the log.
const HEADER_BYTES: usize = 32;
/// Bytes of the header of a frame, before its page.
const FRAME_HEADER_BYTES: usize = 24;
/// The first number of a log whose checksums are little-endian; the next is big-endian.
const MAGIC: u32 = 0x377f_0682;

/// The log of a database.
pub(super) fn path(database: &Path) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push("-wal");
    path.into()
}

/// Whether the log of `database` has lost transactions that were on the disk, so that SQLite would
/// go on without them. The last transaction is not judged.
///
/// # Errors
///
/// The operating system's.
pub(super) fn is_damaged(database: &Path) -> std::io::Result<bool> {
    let file = match File::open(path(database)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    let bytes = file.metadata()?.len();
    let mut log = BufReader::with_capacity(1 << 20, file);
    let mut header = [0; HEADER_BYTES];
    if bytes <= HEADER_BYTES as u64 || !fills(&mut log, &mut header)? {
        return Ok(false);
    }
    // Frames were written only after their header was.
    let Some(mut chain) = Chain::begin(&header) else { return Ok(true) };
    let mut frame = vec![0; FRAME_HEADER_BYTES + chain.page_bytes];
    // Whether a transaction with a damaged frame has ended.
    let (mut broken, mut ended) = (false, false);
    while fills(&mut log, &mut frame)? {
        let is_of_log = frame[8..16] == chain.salts;
        if ended && is_of_log {
            return Ok(true);
        }
        broken = broken || !is_of_log || !chain.follows(&frame);
        ended = ended || (broken && number(&frame, 4) != 0);
    }
    Ok(false)
}

/// Reads as many bytes as fit; false at the end of the file.
fn fills(file: &mut impl Read, bytes: &mut [u8]) -> std::io::Result<bool> {
    match file.read_exact(bytes) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

/// The number of 32 bits at `at`.
fn number(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// The checksums of a log. Each covers everything before it.
struct Chain {
    is_big_endian: bool,
    page_bytes: usize,
    salts: [u8; 8],
    sums: (u32, u32),
}

impl Chain {
    /// The chain behind `header`; none if that is damaged.
    fn begin(header: &[u8; HEADER_BYTES]) -> Option<Self> {
        let magic = number(header, 0);
        let page_bytes = number(header, 8) as usize;
        if magic & !1 != MAGIC || !(512..=65_536).contains(&page_bytes) {
            return None;
        }
        let mut salts = [0; 8];
        salts.copy_from_slice(&header[16..24]);
        let mut chain = Self { is_big_endian: magic & 1 == 1, page_bytes, salts, sums: (0, 0) };
        chain.add(&header[..24]);
        (chain.sums == (number(header, 24), number(header, 28))).then_some(chain)
    }

    /// Whether `frame` is the next one. Then it is part of the chain.
    fn follows(&mut self, frame: &[u8]) -> bool {
        self.add(&frame[..8]);
        self.add(&frame[FRAME_HEADER_BYTES..]);
        self.sums == (number(frame, 16), number(frame, 20))
    }

    fn add(&mut self, bytes: &[u8]) {
        let word = |bytes: &[u8]| {
            let number = number(bytes, 0);
            if self.is_big_endian { number } else { number.swap_bytes() }
        };
        for pair in bytes.chunks_exact(8) {
            let (first, second) = &mut self.sums;
            *first = first.wrapping_add(word(pair)).wrapping_add(*second);
            *second = second.wrapping_add(word(&pair[4..])).wrapping_add(*first);
        }
    }
}
