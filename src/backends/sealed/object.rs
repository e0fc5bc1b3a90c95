//! Encryption of whole objects in a bucket.
//!
//! ```text
//!   TDGE format │ id of the key │ nonce │ ciphertext and tag
//! ```
//!
//! Each place in the bucket has a key of its own, which is derived from a key of the deployment and the
//! name of the place (HKDF with SHA-256). So an object cannot be moved, and no number of objects uses up
//! the nonces of a key.

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    hkdf::{HKDF_SHA256, KeyType, Prk, Salt},
};
use bytes::Bytes;

use super::{Key, Keys};

/// Which objects of a bucket are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectEncryption {
    /// No new object is. What is encrypted is read.
    Off,
    /// Every new object is. What is not encrypted is read.
    On,
    /// Every object is. What is not encrypted may be from a writer without a key, and is refused.
    Required,
}

/// Why an object cannot be encrypted or decrypted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectError {
    /// The key of this id encrypted it, and is not among the keys.
    #[error("it is encrypted with key {0}, which this server does not have")]
    KeyMissing(String),
    /// Bytes were changed, or the object was moved.
    #[error("it is damaged; it is encrypted with key {0}")]
    Damaged(String),
    /// It is encrypted in another form.
    #[error("it is encrypted in a form that is not known")]
    UnknownForm,
    /// It must be encrypted.
    #[error("it is not encrypted, and every object must be")]
    Clear,
    /// The cipher has failed.
    #[error("it cannot be encrypted")]
    Cipher,
}

/// The first bytes of an encrypted object.
const MAGIC: [u8; 4] = *b"TDGE";
/// The only format.
const FORMAT: u8 = 1;
/// Bytes of the id of a key.
const ID_BYTES: usize = 4;
/// Bytes before the nonce.
const HEAD_BYTES: usize = MAGIC.len() + 1 + ID_BYTES;
/// Bytes of a tag of AES-GCM.
const TAG_BYTES: usize = 16;
/// How many bytes an encrypted object has more than its clear text.
pub(crate) const OVERHEAD: usize = HEAD_BYTES + NONCE_LEN + TAG_BYTES;

/// The secret that the keys of places are derived from.
pub(super) fn derivable(key: &[u8]) -> Prk {
    Salt::new(HKDF_SHA256, b"tidegate objects").extract(key)
}

/// A key of AES-256, for its derivation.
struct Aes256;

impl KeyType for Aes256 {
    fn len(&self) -> usize {
        super::KEY_BYTES
    }
}

impl Key {
    /// The cipher of one place.
    fn cipher_of(&self, place: &str) -> Result<RandomizedNonceKey, ObjectError> {
        let mut key = [0; super::KEY_BYTES];
        let info = [place.as_bytes()];
        let derived = self.derivable.expand(&info, Aes256).and_then(|okm| okm.fill(&mut key));
        derived.map_err(|_| ObjectError::Cipher)?;
        RandomizedNonceKey::new(&AES_256_GCM, &key).map_err(|_| ObjectError::Cipher)
    }
}

/// Returns the id of the key that encrypted `bytes`; none if they are not encrypted.
pub(crate) fn key_of(bytes: &[u8]) -> Option<String> {
    let id = bytes.strip_prefix(&MAGIC)?.get(1..=ID_BYTES)?;
    Some(id.iter().fold(String::new(), |id, byte| id + &format!("{byte:02x}")))
}

impl Keys {
    /// Encrypts `clear` for `place` with the first key.
    ///
    /// # Errors
    ///
    /// [`ObjectError::Cipher`].
    pub(crate) fn seal_object(&self, clear: &[u8], place: &str) -> Result<Vec<u8>, ObjectError> {
        let [key, ..] = &self.0[..] else { return Err(ObjectError::Cipher) };
        let id = u32::from_str_radix(&key.id, 16).map_err(|_| ObjectError::Cipher)?;
        let mut bytes = Vec::with_capacity(clear.len() + OVERHEAD);
        bytes.extend(MAGIC);
        bytes.push(FORMAT);
        bytes.extend(id.to_be_bytes());
        bytes.resize(HEAD_BYTES + NONCE_LEN, 0);
        let begin = bytes.len();
        bytes.extend(clear);
        let cipher = key.cipher_of(place)?;
        let (nonce, tag) = cipher
            .seal_in_place_separate_tag(Aad::empty(), &mut bytes[begin..])
            .map_err(|_| ObjectError::Cipher)?;
        bytes[HEAD_BYTES..begin].copy_from_slice(nonce.as_ref());
        bytes.extend(tag.as_ref());
        Ok(bytes)
    }

    /// Decrypts what [`Self::seal_object`] encrypted for `place`.
    ///
    /// # Errors
    ///
    /// No key is the right one, the form is not known, or the bytes were changed or moved.
    pub(crate) fn open_object(&self, sealed: &[u8], place: &str) -> Result<Vec<u8>, ObjectError> {
        let id = key_of(sealed).ok_or(ObjectError::UnknownForm)?;
        if sealed[MAGIC.len()] != FORMAT {
            return Err(ObjectError::UnknownForm);
        }
        let key = self.0.iter().find(|key| key.id == id);
        let key = key.ok_or_else(|| ObjectError::KeyMissing(id.clone()))?;
        let damaged = |_| ObjectError::Damaged(id.clone());
        let (nonce, text) = sealed[HEAD_BYTES..]
            .split_at_checked(NONCE_LEN)
            .ok_or_else(|| ObjectError::Damaged(id.clone()))?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(damaged)?;
        let mut text = text.to_vec();
        let clear = key.cipher_of(place)?.open_in_place(nonce, Aad::empty(), &mut text);
        let length = clear.map_err(damaged)?.len();
        text.truncate(length);
        Ok(text)
    }
}

/// The keys of the objects of a bucket, and which objects are encrypted.
#[derive(Clone, Debug)]
pub(crate) struct ObjectCipher {
    keys: Keys,
    encryption: ObjectEncryption,
}

impl ObjectCipher {
    /// Encrypts with the first of `keys`, and decrypts with all of them.
    pub(crate) fn new(keys: Keys, encryption: ObjectEncryption) -> Self {
        Self { keys, encryption }
    }

    /// Returns what is stored for a new object at `place`.
    ///
    /// # Errors
    ///
    /// [`ObjectError::Cipher`].
    pub(crate) fn seal(&self, clear: Bytes, place: &str) -> Result<Bytes, ObjectError> {
        match self.encryption {
            ObjectEncryption::Off => Ok(clear),
            ObjectEncryption::On | ObjectEncryption::Required => {
                self.keys.seal_object(&clear, place).map(Bytes::from)
            }
        }
    }

    /// Returns the clear text of what is stored at `place`.
    ///
    /// # Errors
    ///
    /// Those of [`Keys::open_object`]; [`ObjectError::Clear`] if it is not encrypted and must be.
    pub(crate) fn open(&self, stored: Bytes, place: &str) -> Result<Bytes, ObjectError> {
        if key_of(&stored).is_some() {
            return self.keys.open_object(&stored, place).map(Bytes::from);
        }
        match self.encryption {
            ObjectEncryption::Off | ObjectEncryption::On => Ok(stored),
            ObjectEncryption::Required => Err(ObjectError::Clear),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    const SECOND: &str = "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";

    fn keys(text: &str) -> Keys {
        Keys::parse(text).unwrap()
    }

    #[test]
    fn an_object_is_read_with_its_key_and_at_its_place() {
        for clear in [&b""[..], b"body", &vec![7; 100_000]] {
            let sealed = keys(FIRST).seal_object(clear, "epochs/1/0").unwrap();
            assert_eq!(sealed.len(), clear.len() + OVERHEAD);
            assert!(clear.is_empty() || !sealed.windows(clear.len()).any(|part| part == clear));
            // A later key encrypts, and the earlier one still decrypts.
            let both = keys(&format!("{SECOND},{FIRST}"));
            assert_eq!(both.open_object(&sealed, "epochs/1/0").unwrap(), clear);
            let moved = both.open_object(&sealed, "epochs/1/1").unwrap_err();
            assert!(matches!(moved, ObjectError::Damaged(_)), "{moved}");
            let missing = keys(SECOND).open_object(&sealed, "epochs/1/0").unwrap_err();
            let id = key_of(&sealed).unwrap();
            assert!(matches!(missing, ObjectError::KeyMissing(named) if named == id));
        }
    }

    #[test]
    fn damage_of_every_bit_and_every_cut_of_an_object_is_found() {
        let keys = keys(FIRST);
        let sealed = keys.seal_object(b"body", "here").unwrap();
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            keys.open_object(&damaged, "here").unwrap_err();
        }
        for length in 0..sealed.len() {
            keys.open_object(&sealed[..length], "here").unwrap_err();
        }
    }

    #[test]
    fn a_clear_object_is_refused_where_all_must_be_encrypted() {
        use ObjectEncryption::{Off, On, Required};
        let cipher = |encryption| ObjectCipher::new(keys(FIRST), encryption);
        let clear = Bytes::from_static(b"body");
        for (written, read) in [(Off, Off), (Off, On), (On, Off), (On, Required), (Required, On)] {
            let stored = cipher(written).seal(clear.clone(), "here").unwrap();
            assert_eq!(stored == clear, written == Off, "{written:?}");
            assert_eq!(cipher(read).open(stored, "here").unwrap(), clear, "{written:?} {read:?}");
        }
        for forged in [&b""[..], b"body", b"TDG", b"TDGE"] {
            let refused = cipher(Required).open(Bytes::from_static(forged), "here").unwrap_err();
            assert!(matches!(refused, ObjectError::Clear), "{forged:?}: {refused}");
        }
    }

    #[test]
    fn the_same_text_is_encrypted_differently_each_time() {
        let keys = keys(FIRST);
        let seal = || keys.seal_object(b"body", "here").unwrap();
        assert_ne!(seal(), seal());
    }
}
