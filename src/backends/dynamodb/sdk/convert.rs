//! Changes, keys and items as the SDK's types.

use std::collections::HashMap;

use aws_sdk_dynamodb::{
    primitives::Blob,
    types::{
        AttributeValue, Delete, DeleteRequest, Put, PutRequest, TransactWriteItem, Update,
        WriteRequest,
    },
};
use bytes::Bytes;

use super::SdkTable;
use crate::dynamodb::{
    key::Key,
    table::{Change, ExchangeStep, Item, Name, Val},
};
use tidegate_core::port::StoreError;

impl SdkTable {
    /// A change as an action of a transaction.
    pub(super) fn action(&self, change: &Change) -> Result<TransactWriteItem, StoreError> {
        let mut names: HashMap<String, String> = HashMap::new();
        let mut values: HashMap<String, AttributeValue> = HashMap::new();
        let mut holds = |when: &(Name, Val)| {
            names.insert("#w".into(), when.0.to_string());
            values.insert(":w".into(), value_of(&when.1));
            "#w = :w".to_owned()
        };
        let table = Some(self.name.clone());
        let action = TransactWriteItem::builder();
        let built = match change {
            Change::Put(item) => action.put(
                Put::builder()
                    .set_table_name(table)
                    .set_item(Some(attributes(item)))
                    .build()
                    .map_err(StoreError::unavailable)?,
            ),
            Change::Insert(item) => {
                let put = Put::builder()
                    .set_table_name(table)
                    .set_item(Some(attributes(item)))
                    .condition_expression("attribute_not_exists(p)");
                action.put(put.build().map_err(StoreError::unavailable)?)
            }
            Change::Delete { key, when } => {
                let condition = when.as_ref().map(&mut holds);
                let delete = Delete::builder()
                    .set_table_name(table)
                    .set_key(Some(key_of(key)))
                    .set_condition_expression(condition);
                let named = when.is_some();
                let delete = delete
                    .set_expression_attribute_names(named.then_some(names))
                    .set_expression_attribute_values(named.then_some(values));
                action.delete(delete.build().map_err(StoreError::unavailable)?)
            }
            Change::Update { key, set, remove, when } => {
                let condition = holds(when);
                let text = update_expression(set, remove, &mut names, &mut values);
                let update = Update::builder()
                    .set_table_name(table)
                    .set_key(Some(key_of(key)))
                    .update_expression(text)
                    .condition_expression(condition)
                    .set_expression_attribute_names(Some(names))
                    .set_expression_attribute_values(Some(values));
                action.update(update.build().map_err(StoreError::unavailable)?)
            }
        };
        Ok(built.build())
    }
}

/// The expression of an update. Adds its placeholders to `names` and `values`.
fn update_expression(
    set: &[(Name, Val)],
    remove: &[Name],
    names: &mut HashMap<String, String>,
    values: &mut HashMap<String, AttributeValue>,
) -> String {
    let mut sets = Vec::new();
    for (name, val) in set {
        names.insert(format!("#{name}"), name.to_string());
        values.insert(format!(":{name}"), value_of(val));
        sets.push(format!("#{name} = :{name}"));
    }
    let text = format!("SET {}", sets.join(", "));
    if remove.is_empty() {
        return text;
    }
    let removes: Vec<String> = remove.iter().map(|name| format!("#{name}")).collect();
    names.extend(remove.iter().map(|name| (format!("#{name}"), name.to_string())));
    format!("{text} REMOVE {}", removes.join(", "))
}

/// The expression of an exchange. Adds its placeholders to `names` and `values`.
pub(super) fn exchange_expression(
    step: &ExchangeStep,
    names: &mut HashMap<String, String>,
    values: &mut HashMap<String, AttributeValue>,
) -> String {
    let mut named = |placeholder: &str, name: Name| {
        names.insert(placeholder.to_owned(), name.to_string());
    };
    match step {
        ExchangeStep::Add { elements: (name, elements), first, set } => {
            named("#first", first.0);
            values.insert(":first".into(), value_of(&first.1));
            let mut sets = vec!["#first = if_not_exists(#first, :first)".to_owned()];
            for (name, value) in set {
                named(&format!("#{name}"), *name);
                values.insert(format!(":{name}"), value_of(value));
                sets.push(format!("#{name} = :{name}"));
            }
            let sets = format!("SET {}", sets.join(", "));
            if elements.is_empty() {
                return sets;
            }
            named("#elements", *name);
            values.insert(":elements".into(), value_of(&Val::Set(elements.clone())));
            format!("{sets} ADD #elements :elements")
        }
        ExchangeStep::Move { from, to, set, remove } => {
            named("#from", *from);
            named("#to", *to);
            named("#remove", *remove);
            values.insert(":none".into(), value_of(&Val::N(0)));
            let mut sets = vec!["#to = if_not_exists(#from, :none)".to_owned()];
            for (name, value) in set {
                named(&format!("#{name}"), *name);
                values.insert(format!(":{name}"), value_of(value));
                sets.push(format!("#{name} = :{name}"));
            }
            format!("SET {} REMOVE #from, #remove", sets.join(", "))
        }
    }
}

pub(super) fn write_request(change: &Change) -> Result<WriteRequest, StoreError> {
    let request = match change {
        Change::Put(item) => WriteRequest::builder().put_request(
            PutRequest::builder()
                .set_item(Some(attributes(item)))
                .build()
                .map_err(StoreError::unavailable)?,
        ),
        change => {
            let delete = DeleteRequest::builder()
                .set_key(Some(key_of(change.key())))
                .build()
                .map_err(StoreError::unavailable)?;
            WriteRequest::builder().delete_request(delete)
        }
    };
    Ok(request.build())
}

pub(super) fn value_of(val: &Val) -> AttributeValue {
    match val {
        Val::S(text) => AttributeValue::S(text.clone()),
        Val::N(number) => AttributeValue::N(number.to_string()),
        Val::B(bytes) => AttributeValue::B(Blob::new(bytes.to_vec())),
        Val::Set(elements) => {
            AttributeValue::Bs(elements.iter().map(|bytes| Blob::new(bytes.to_vec())).collect())
        }
    }
}

pub(super) fn key_of(key: &Key) -> HashMap<String, AttributeValue> {
    HashMap::from([
        ("p".into(), AttributeValue::S(key.p.clone())),
        ("s".into(), AttributeValue::S(key.s.clone())),
    ])
}

fn attributes(item: &Item) -> HashMap<String, AttributeValue> {
    let mut all = key_of(&item.key);
    all.extend(item.attrs.iter().map(|(name, val)| (name.to_string(), value_of(val))));
    all
}

pub(super) fn item_of(attributes: HashMap<String, AttributeValue>) -> Result<Item, StoreError> {
    let (mut p, mut s) = (None, None);
    let mut item = Item::new(Key::new("", ""), []);
    for (name, value) in attributes {
        let value = match value {
            AttributeValue::S(text) => Val::S(text),
            AttributeValue::N(number) => Val::N(number.parse().map_err(|_| {
                StoreError::corrupt(format!("attribute {name} is {number}, not a u64"))
            })?),
            AttributeValue::B(blob) => Val::B(Bytes::from(blob.into_inner())),
            AttributeValue::Bs(blobs) => {
                Val::Set(blobs.into_iter().map(|blob| Bytes::from(blob.into_inner())).collect())
            }
            other => {
                return Err(StoreError::corrupt(format!(
                    "attribute {name} has an unknown type: {other:?}"
                )));
            }
        };
        match (name.as_str(), value) {
            ("p", Val::S(text)) => p = Some(text),
            ("s", Val::S(text)) => s = Some(text),
            (name, value) => {
                let mut letters = name.chars();
                if let (Some(letter), None) = (letters.next(), letters.next()) {
                    item.attrs.insert(letter, value);
                }
            }
        }
    }
    item.key = p
        .zip(s)
        .map(|(p, s)| Key::new(p, s))
        .ok_or_else(|| StoreError::corrupt("an item has no key"))?;
    Ok(item)
}
