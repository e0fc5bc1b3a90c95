use std::{cell::Cell, collections::BTreeMap};

use rstest::rstest;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::*;

/// A struct in each place where one may be.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
#[allow(dead_code, reason = "the tests ask whether it can be read")]
struct Whole {
    inner: Option<Inner>,
    list: Vec<Inner>,
    map: BTreeMap<String, Inner>,
    named: Option<Named>,
    boxed: Option<Boxed>,
    pair: Option<(u8, Inner)>,
    kept: Value,
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "the tests ask whether it can be read")]
struct Inner {
    #[serde(default)]
    n: u8,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "the tests ask whether it can be read")]
enum Named {
    Unit,
    Holds(Inner),
    Has {
        #[serde(default)]
        n: u8,
    },
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "the tests ask whether it can be read")]
struct Boxed(Box<Inner>);

fn read<T: for<'de> Deserialize<'de>>(value: &Value) -> Result<T, serde_json::Error> {
    let text = value.to_string();
    T::deserialize(strict(&mut serde_json::Deserializer::from_str(&text)))
}

#[rstest]
#[case::whole(json!([]))]
#[case::option(json!({"inner": [7]}))]
#[case::item(json!({"list": [{}, [7]]}))]
#[case::map(json!({"map": []}))]
#[case::value(json!({"map": {"a": [7]}}))]
#[case::newtype_variant(json!({"named": {"holds": [7]}}))]
#[case::struct_variant(json!({"named": {"has": [7]}}))]
#[case::newtype_struct(json!({"boxed": [7]}))]
#[case::tuple(json!({"pair": [1, [7]]}))]
fn a_list_is_no_struct(#[case] value: Value) {
    let error = read::<Whole>(&value).err().expect("a list is refused").to_string();
    assert!(error.contains("expected an object"), "{error}");
    let text = value.to_string();
    assert!(serde_json::from_str::<Whole>(&text).is_ok() || text.contains("map\":[]"), "{text}");
}

#[test]
fn objects_lists_and_values_of_any_type_are_read() {
    let value = json!({
        "inner": {"n": 7}, "list": [{}, {"n": 7}], "map": {"a": {}}, "named": {"has": {}},
        "boxed": {"n": 7}, "pair": [1, {}], "kept": [[], [7], {"a": []}],
    });
    let whole = read::<Whole>(&value).unwrap();
    assert_eq!(whole.list.len(), 2);
    assert_eq!(whole.kept, value["kept"]);
    assert!(read::<Whole>(&json!({"named": "unit", "inner": null})).is_ok());
}

#[test]
fn a_list_is_refused_while_it_is_read() {
    thread_local! { static READ: Cell<usize> = const { Cell::new(0) }; }
    struct Counted;
    impl<'de> Deserialize<'de> for Counted {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            READ.set(READ.get() + 1);
            u8::deserialize(deserializer).map(|_| Self)
        }
    }
    assert_eq!(read::<Vec<Counted>>(&json!(vec![1; MAX_ITEMS])).unwrap().len(), MAX_ITEMS);
    READ.set(0);
    let error = read::<Vec<Counted>>(&json!(vec![1; 100 * MAX_ITEMS])).err().unwrap();
    assert!(error.to_string().starts_with("must have at most 1000 items"), "{error}");
    assert_eq!(READ.get(), MAX_ITEMS + 1);
}
