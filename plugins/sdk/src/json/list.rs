//! The elements of a list and the members of an object.

use serde::de::{DeserializeSeed, MapAccess, SeqAccess};

use super::{error::Error, key::Key, reader::Reader};

/// The position in the elements of a list or the members of an object.
pub(super) struct List {
    end: u8,
    /// `usize::MAX` after its end was read.
    count: usize,
    /// The key of the next value.
    pub(super) key: String,
}

impl List {
    /// The start of a list or an object that ends with `end`.
    pub(super) fn new(end: u8) -> Self {
        Self { end, count: 0, key: String::new() }
    }

    /// Whether another element follows. Reads the comma before it, or the end.
    #[inline(never)]
    pub(super) fn more(&mut self, reader: &mut Reader) -> Result<bool, Error> {
        if self.count == usize::MAX {
            return Ok(false);
        }
        if reader.peek() == Some(self.end) {
            reader.at += 1;
            self.count = usize::MAX;
            return Ok(false);
        }
        if self.count > 0 {
            reader.take(b',', "`,` or the end of the list")?;
        }
        self.count += 1;
        Ok(true)
    }

    /// Whether another member follows. Reads its key.
    #[inline(never)]
    pub(super) fn member(&mut self, reader: &mut Reader) -> Result<bool, Error> {
        let more = self.more(reader)?;
        if more {
            self.key = reader.string()?;
            reader.take(b':', "`:`")?;
        }
        Ok(more)
    }
}

/// Reads the elements of a list or the members of an object for serde.
pub(super) struct Elements<'r, 'a, 'l> {
    pub(super) reader: &'r mut Reader<'a>,
    pub(super) list: &'l mut List,
}

impl<'de> SeqAccess<'de> for Elements<'_, '_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        if !self.list.more(self.reader)? {
            return Ok(None);
        }
        seed.deserialize(&mut *self.reader).map(Some).map_err(|error| error.at(self.list.count - 1))
    }
}

impl<'de> MapAccess<'de> for Elements<'_, '_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        if !self.list.member(self.reader)? {
            return Ok(None);
        }
        seed.deserialize(Key(&self.list.key)).map(Some).map_err(|error| error.under(&self.list.key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(&mut *self.reader).map_err(|error| error.under(&self.list.key))
    }
}
