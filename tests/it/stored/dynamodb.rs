//! Tables as items in JSON: each release reads those of the earlier ones.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use tidegate_backends::dynamodb::{
    DynamoStore, Key,
    memory::MemoryTable,
    table::{Change, Item, Table, Val},
};
use tidegate_core::{port::JobStore, time::Timestamp};
use tidegate_engine::{
    memory::{FakeClock, SeededEntropy},
    testkit::builders::at,
};

use super::{assert_newest, files};
use crate::every_record::{every_answer, every_record};

/// A store on `table`.
fn store(table: &Arc<MemoryTable>) -> DynamoStore {
    let (clock, entropy) = (FakeClock::new(at(0)), SeededEntropy::new(1));
    DynamoStore::new(Arc::clone(table) as _, Arc::new(clock), Arc::new(entropy))
}

/// An item as a line of JSON: its key, and its attributes as DynamoDB writes them.
fn line(item: &Item) -> String {
    let attribute = |val: &Val| match val {
        Val::S(text) => json!({"S": text}),
        Val::N(number) => json!({"N": number}),
        Val::B(bytes) => json!({"B": STANDARD.encode(bytes)}),
        Val::Set(_) => unreachable!("no stored record has a set"),
    };
    let mut all: Map<String, Value> =
        item.attrs.iter().map(|(name, val)| (name.to_string(), attribute(val))).collect();
    all.insert("PK".into(), item.key.p.clone().into());
    all.insert("SK".into(), item.key.s.clone().into());
    Value::Object(all).to_string()
}

/// The item of a [`line`].
fn item(line: &str) -> Item {
    let mut all: Map<String, Value> = serde_json::from_str(line).unwrap();
    let mut key = |name| all.remove(name).unwrap().as_str().unwrap().to_owned();
    let key = Key { p: key("PK"), s: key("SK") };
    let attribute = |(name, value): (String, Value)| {
        let (form, value) = value.as_object().unwrap().iter().next().unwrap();
        let val = match form.as_str() {
            "S" => Val::S(value.as_str().unwrap().to_owned()),
            "N" => Val::N(value.as_u64().unwrap()),
            _ => Val::B(STANDARD.decode(value.as_str().unwrap()).unwrap().into()),
        };
        (name.chars().next().unwrap(), val)
    };
    Item::new(key, all.into_iter().map(attribute))
}

#[tokio::test]
async fn tables_of_every_release_are_read() {
    let new = Arc::new(MemoryTable::new());
    store(&new).commit(every_record()).await.unwrap();
    store(&new).keep_counts(Timestamp::MAX).await.unwrap();
    let mut lines: Vec<String> = new.items().iter().map(line).collect();
    lines.sort_unstable();
    let files = files("dynamodb", "jsonl");
    assert_newest(&files, &(lines.join("\n") + "\n"));
    let expected = every_answer(&store(&new)).await;
    for file in files {
        let old = Arc::new(MemoryTable::new());
        let text = std::fs::read_to_string(&file).unwrap();
        let puts: Vec<Change> = text.lines().map(item).map(Change::Put).collect();
        old.write(&puts).await.unwrap();
        assert_eq!(every_answer(&store(&old)).await, expected, "{}", file.display());
    }
}
