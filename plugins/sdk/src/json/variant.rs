//! The variants of an enum that have a value.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, EnumAccess, VariantAccess, Visitor},
};

use super::{error::Error, key::Key, reader::Reader};

/// A variant with a value: an object with one member.
pub(super) struct Variant<'r, 'a> {
    pub(super) reader: &'r mut Reader<'a>,
    pub(super) name: &'r str,
}

impl<'de> EnumAccess<'de> for Variant<'_, '_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let variant = seed.deserialize(Key(self.name)).map_err(|error| error.under(self.name))?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        <()>::deserialize(&mut *self.reader).map_err(|error| error.under(self.name))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(&mut *self.reader).map_err(|error| error.under(self.name))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.reader.deserialize_seq(visitor).map_err(|error| error.under(self.name))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.reader.deserialize_map(visitor).map_err(|error| error.under(self.name))
    }
}
