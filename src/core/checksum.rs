//! The checksum of stored bytes.
//!
//! CRC-32 finds every damage of up to 32 adjacent bits, and misses one of four thousand million
//! others. It is no protection against a person who changes bytes on purpose.

/// The checksum of `parts`, one after the other.
pub fn checksum(parts: &[&[u8]]) -> u32 {
    let mut checksum = crc32fast::Hasher::new();
    for part in parts {
        checksum.update(part);
    }
    checksum.finalize()
}
