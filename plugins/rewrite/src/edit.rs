//! Edits of JSON text. Values that an edit does not change keep their bytes.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};
use tidegate_plugin::{Raw, parse, quote};

/// A JSON pointer (RFC 6901): `/endpoints/0/url`, or empty for the whole text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer(Vec<String>);

/// One change of a JSON text.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub enum Edit {
    /// Sets the value at a pointer. Missing objects on the way are created.
    Set(Pointer, Raw),
    /// Removes the value at a pointer.
    Remove(Pointer),
    /// Sets the second pointer to the value at the first.
    Copy(Pointer, Pointer),
}

/// `{"set": "/a", "value": 1}`, `{"remove": "/a"}` or `{"copy": "/a", "to": "/b"}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    set: Option<Pointer>,
    #[serde(default, deserialize_with = "some")]
    value: Option<Raw>,
    remove: Option<Pointer>,
    copy: Option<Pointer>,
    to: Option<Pointer>,
}

/// A value that is present, including null.
fn some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Raw>, D::Error> {
    Raw::deserialize(deserializer).map(Some)
}

impl TryFrom<Written> for Edit {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        match written {
            Written { set: Some(path), value: Some(value), remove: None, copy: None, to: None } => {
                Ok(Self::Set(path, value))
            }
            Written { remove: Some(path), set: None, value: None, copy: None, to: None } => {
                Ok(Self::Remove(path))
            }
            Written { copy: Some(from), to: Some(path), set: None, value: None, remove: None } => {
                Ok(Self::Copy(from, path))
            }
            _ => Err("must have `set` and `value`, or `remove`, or `copy` and `to`"),
        }
    }
}

impl Edit {
    /// The text with this change.
    ///
    /// # Errors
    ///
    /// Why it cannot be applied: a pointer leads to no value, or no value can be set there.
    pub fn apply(&self, text: &str) -> Result<String, String> {
        match self {
            Self::Set(path, Raw(value)) => changed(text, &path.0, Some(value)),
            Self::Remove(path) => changed(text, &path.0, None),
            Self::Copy(from, path) => changed(text, &path.0, Some(&found(text, &from.0)?)),
        }
    }
}

/// One level of an object or a list.
enum Container {
    Object(Vec<(String, String)>),
    List(Vec<String>),
}

impl Container {
    fn read(text: &str) -> Option<Self> {
        if text.trim_start().starts_with('[') {
            let elements: Vec<Raw> = parse(text).ok()?;
            return Some(Self::List(elements.into_iter().map(|Raw(element)| element).collect()));
        }
        parse(text).ok().map(|Members(members)| Self::Object(members))
    }

    fn write(&self) -> String {
        match self {
            Self::Object(members) => {
                let members: Vec<String> =
                    members.iter().map(|(key, value)| format!("{}:{value}", quote(key))).collect();
                format!("{{{}}}", members.join(","))
            }
            Self::List(elements) => format!("[{}]", elements.join(",")),
        }
    }

    /// The position of the child with this name.
    fn place(&self, name: &str) -> Option<usize> {
        match self {
            Self::Object(members) => members.iter().position(|(key, _)| key == name),
            Self::List(elements) => name.parse().ok().filter(|place| *place < elements.len()),
        }
    }

    fn child(&self, place: usize) -> &str {
        match self {
            Self::Object(members) => &members[place].1,
            Self::List(elements) => &elements[place],
        }
    }

    /// Replaces the child at `place`, or removes it.
    fn replace(&mut self, place: usize, value: Option<String>) {
        match (self, value) {
            (Self::Object(members), Some(value)) => members[place].1 = value,
            (Self::List(elements), Some(value)) => elements[place] = value,
            (Self::Object(members), None) => drop(members.remove(place)),
            (Self::List(elements), None) => drop(elements.remove(place)),
        }
    }
}

fn found(text: &str, pointer: &[String]) -> Result<String, String> {
    let Some((name, rest)) = pointer.split_first() else { return Ok(text.to_owned()) };
    let container = Container::read(text)
        .ok_or_else(|| format!("{name} would be within what is neither an object nor a list"))?;
    let place = container.place(name).ok_or_else(|| format!("there is no {name}"))?;
    found(container.child(place), rest)
}

/// The text with `value` at `pointer`. If `value` is none, the text without the value there.
fn changed(text: &str, pointer: &[String], value: Option<&str>) -> Result<String, String> {
    let Some((name, rest)) = pointer.split_first() else {
        return value.map(str::to_owned).ok_or_else(|| "the whole cannot be removed".to_owned());
    };
    let mut container = Container::read(text)
        .ok_or_else(|| format!("{name} would be within what is neither an object nor a list"))?;
    let place = container.place(name);
    match (place, value) {
        (Some(place), None) if rest.is_empty() => container.replace(place, None),
        (Some(place), _) => {
            let child = changed(container.child(place), rest, value)?;
            container.replace(place, Some(child));
        }
        (None, None) => return Err(format!("there is no {name}")),
        (None, Some(_)) => {
            let child = changed("{}", rest, value)?;
            match &mut container {
                Container::Object(members) => members.push((name.clone(), child)),
                Container::List(elements) if name == "-" => elements.push(child),
                Container::List(_) => return Err(format!("the list has no place {name}")),
            }
        }
    }
    Ok(container.write())
}

/// An object's members, in their order.
struct Members(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Members;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some((key, Raw(value))) = map.next_entry()? {
                    members.push((key, value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(All)
    }
}

/// A part of a pointer without its escapes: `~1` is a slash, and `~0` is a tilde.
fn unescaped(part: &str) -> String {
    let mut plain = String::new();
    let mut tilde = false;
    for character in part.chars() {
        match (tilde, character) {
            (false, '~') => {}
            (true, '1') => plain.push('/'),
            (true, '0') => plain.push('~'),
            _ => plain.push(character),
        }
        tilde = !tilde && character == '~';
    }
    plain
}

impl<'de> Deserialize<'de> for Pointer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut parts = text.split('/');
        if parts.next() != Some("") {
            return Err(de::Error::custom("must be a JSON pointer like /endpoints/0/url"));
        }
        Ok(Self(parts.map(unescaped).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(text: &str, edit: &str) -> String {
        let edit: Edit = parse(edit).unwrap();
        edit.apply(text).unwrap_or_else(|error| format!("error: {error}"))
    }

    #[test]
    fn an_edit_changes_its_place_and_nothing_else() {
        let text = r#"{"b": 1.50, "a": {"x/y": [1, 2]}, "big": 12345678901234567890}"#;
        let set = r#"{"set": "/a/x~1y/1", "value": {"z": 9}}"#;
        assert_eq!(
            edited(text, set),
            r#"{"b":1.50,"a":{"x/y":[1,{"z": 9}]},"big":12345678901234567890}"#
        );
        assert_eq!(
            edited(text, r#"{"set": "/c/d", "value": null}"#),
            r#"{"b":1.50,"a":{"x/y": [1, 2]},"big":12345678901234567890,"c":{"d":null}}"#
        );
        assert_eq!(edited(text, r#"{"remove": "/a"}"#), r#"{"b":1.50,"big":12345678901234567890}"#);
        assert_eq!(
            edited(text, r#"{"copy": "/b", "to": "/a/x~1y/-"}"#),
            r#"{"b":1.50,"a":{"x/y":[1,2,1.50]},"big":12345678901234567890}"#
        );
        assert_eq!(edited(text, r#"{"set": "", "value": []}"#), "[]");
        assert_eq!(
            edited(r#" {"a": {}}"#, r#"{"copy": "", "to": "/a/all"}"#),
            r#"{"a":{"all": {"a": {}}}}"#
        );
    }

    #[test]
    fn an_edit_that_has_no_place_says_so() {
        let text = r#"{"a": [1], "b": 2}"#;
        assert_eq!(edited(text, r#"{"remove": "/c"}"#), "error: there is no c");
        assert_eq!(edited(text, r#"{"remove": "/a/1"}"#), "error: there is no 1");
        assert_eq!(edited(text, r#"{"remove": ""}"#), "error: the whole cannot be removed");
        assert_eq!(
            edited(text, r#"{"set": "/a/7", "value": 1}"#),
            "error: the list has no place 7"
        );
        assert_eq!(
            edited(text, r#"{"set": "/b/c", "value": 1}"#),
            "error: c would be within what is neither an object nor a list"
        );
        assert_eq!(edited(text, r#"{"copy": "/c", "to": "/d"}"#), "error: there is no c");
    }
}
