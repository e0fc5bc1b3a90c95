//! The bodies of objects: small records in MessagePack, and the compressed commands of a group.

use std::io::{Read as _, Write as _};

use bytes::Bytes;
use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tidegate_core::{record, stored::UnknownFields};

/// Most bytes of the commands of a record before compression, as [`plain_bytes`] counts them. A
/// larger one is refused before it is encoded, so no record in the log is too large to be read.
pub const MAX_GROUP_BYTES: usize = 64 << 20;

/// The body of a claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EpochClaim {
    /// Where the process answers requests.
    pub address: String,
    /// The epoch of the newest snapshot that the process knew; 0 if there was none.
    pub snapshot: u64,
    /// Whether the process was started to replace the leader, which may be alive. It is a hint.
    pub replaces: bool,
    /// Whether it closes the log: no server leads after it.
    pub closes: bool,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(EpochClaim { address, snapshot; replaces, closes });

/// The body of a start record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartRecord {
    /// Where the leader answers requests.
    pub address: String,
    /// The number of the tables of the replicated store that the records are for.
    pub schema: u64,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(StartRecord { address, schema });

/// The body of a manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    /// The parts, in order.
    pub parts: Vec<SnapshotPart>,
    /// The epoch of the snapshot before this one; 0 if there was none.
    pub previous: u64,
    /// The digest of the state; none if the replica has none, or an earlier release made the snapshot.
    pub digest: Option<StateDigest>,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(Manifest { parts, previous; digest });

/// A digest of the content of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDigest {
    /// What it is computed of, and how. Two digests can be compared only if they have one form.
    pub form: String,
    /// The SHA-256.
    pub hash: [u8; 32],
}

impl StateDigest {
    /// Whether it is known that `other` is the digest of another content.
    pub fn differs(&self, other: &Self) -> bool {
        self.form == other.form && self.hash != other.hash
    }
}

/// A part of a snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotPart {
    /// Its SHA-256.
    pub hash: [u8; 32],
    /// How many bytes it has.
    pub bytes: u64,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(SnapshotPart { hash, bytes });

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("its body cannot be read: {0}")]
pub struct BadBody(String);

/// `value` as a body.
pub fn encode(value: &impl Serialize) -> Bytes {
    rmp_serde::to_vec(value).expect("a body of the log has no value that cannot be encoded").into()
}

/// The value of a body.
///
/// # Errors
///
/// [`BadBody`] if it is another value.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, BadBody> {
    rmp_serde::from_slice(body).map_err(|error| BadBody(error.to_string()))
}

/// Bytes of the length before a command.
const LENGTH_BYTES: usize = 4;

/// How many bytes `commands` have before compression, with their lengths.
pub fn plain_bytes(commands: &[Bytes]) -> usize {
    commands.iter().map(|command| LENGTH_BYTES + command.len()).sum()
}

/// The commands of a group, compressed: each behind its length.
pub fn pack<'a>(commands: impl IntoIterator<Item = &'a Bytes>) -> Bytes {
    let mut packed = DeflateEncoder::new(Vec::new(), Compression::fast());
    for command in commands {
        let length = (command.len() as u32).to_be_bytes();
        packed
            .write_all(&length)
            .and_then(|()| packed.write_all(command))
            .expect("a vector takes every byte");
    }
    packed.finish().expect("a vector takes every byte").into()
}

/// The commands that [`pack`] has packed.
///
/// # Errors
///
/// [`BadBody`] if the body was not made by [`pack`], or is larger than [`MAX_GROUP_BYTES`] allows.
pub fn unpack(body: &[u8]) -> Result<Vec<Bytes>, BadBody> {
    let mut plain = Vec::new();
    DeflateDecoder::new(body)
        .take(MAX_GROUP_BYTES as u64 + 1)
        .read_to_end(&mut plain)
        .map_err(|error| BadBody(error.to_string()))?;
    if plain.len() > MAX_GROUP_BYTES {
        return Err(BadBody("it is too large".into()));
    }
    let mut rest = Bytes::from(plain);
    let mut commands = Vec::new();
    while !rest.is_empty() {
        let Some(length) = rest.first_chunk().map(|length| u32::from_be_bytes(*length) as usize)
        else {
            return Err(BadBody("it ends within a length".into()));
        };
        let end = LENGTH_BYTES + length;
        if rest.len() < end {
            return Err(BadBody("it ends within a command".into()));
        }
        commands.push(rest.slice(LENGTH_BYTES..end));
        rest = rest.slice(end..);
    }
    Ok(commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_unpacked_as_they_were_packed() {
        for commands in [vec![], vec![vec![]], vec![b"a".to_vec(), vec![], vec![7; 100_000]]] {
            let commands: Vec<Bytes> = commands.into_iter().map(Bytes::from).collect();
            let packed = pack(&commands);
            assert_eq!(unpack(&packed).unwrap(), commands);
            assert!(packed.len() < 1000, "it is compressed");
            let mut plain = Vec::new();
            DeflateDecoder::new(&packed[..]).read_to_end(&mut plain).unwrap();
            assert_eq!(plain.len(), plain_bytes(&commands));
        }
    }

    #[test]
    fn a_body_that_was_cut_is_refused() {
        let packed = pack(&[Bytes::from_static(b"one"), Bytes::from_static(b"two")]);
        for length in 0..packed.len() {
            unpack(&packed[..length]).unwrap_err();
        }
        for plain in [&b"\0\0"[..], &b"\0\0\0\x05four"[..]] {
            let mut packed = DeflateEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(plain).unwrap();
            unpack(&packed.finish().unwrap()).unwrap_err();
        }
    }

    /// A million short commands: without their lengths they would be 4 MB under the bound.
    #[test]
    fn the_largest_group_can_be_read_and_a_larger_one_not() {
        let command = Bytes::from_static(&[b'c'; 60]);
        let mut commands = vec![command.clone(); MAX_GROUP_BYTES / 64];
        assert_eq!(plain_bytes(&commands), MAX_GROUP_BYTES);
        assert_eq!(unpack(&pack(&commands)).unwrap().len(), commands.len());
        commands.push(command);
        unpack(&pack(&commands)).unwrap_err();
    }

    #[test]
    fn bodies_keep_the_fields_of_later_releases() {
        let later = rmp_serde::to_vec(&("address", 7, true, false, "a later field")).unwrap();
        let claim: EpochClaim = decode(&later).unwrap();
        assert_eq!((claim.address.as_str(), claim.snapshot, claim.replaces), ("address", 7, true));
        assert_eq!(encode(&claim), later);
        let earlier = rmp_serde::to_vec(&("address", 7)).unwrap();
        let earlier = decode::<EpochClaim>(&earlier).unwrap();
        assert!(!earlier.replaces && !earlier.closes);
        decode::<EpochClaim>(b"").unwrap_err();
    }

    #[test]
    fn a_manifest_of_an_earlier_release_has_no_digest() {
        let part = SnapshotPart { hash: [7; 32], bytes: 9, ..SnapshotPart::default() };
        let earlier = rmp_serde::to_vec(&(vec![&part], 3)).unwrap();
        let manifest: Manifest = decode(&earlier).unwrap();
        assert_eq!((manifest.previous, &manifest.digest), (3, &None));
        let digest = StateDigest { form: "rows".into(), hash: [1; 32] };
        let manifest = Manifest { digest: Some(digest), ..manifest };
        assert_eq!(decode::<Manifest>(&encode(&manifest)).unwrap(), manifest);
    }

    #[test]
    fn digests_of_two_forms_are_not_compared() {
        let digest = |form: &str, byte| StateDigest { form: form.into(), hash: [byte; 32] };
        assert!(digest("a", 1).differs(&digest("a", 2)));
        assert!(!digest("a", 1).differs(&digest("a", 1)));
        assert!(!digest("a", 1).differs(&digest("b", 2)));
    }
}
