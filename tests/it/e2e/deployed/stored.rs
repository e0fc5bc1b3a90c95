//! What a deployment has stored: the items of its table and the objects of its bucket.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use aws_sdk_dynamodb::{Client, types::AttributeValue};
use futures_util::TryStreamExt as _;
use object_store::ObjectStore;
use tidegate_backends::{aws::Calls, objects};

use super::{CALL_TIMEOUT, config, stack};

/// The table and the bucket of the stack.
pub struct Stored {
    table: Client,
    name: String,
    bucket: Arc<dyn ObjectStore>,
}

impl Stored {
    /// Those that the outputs of the stack name.
    pub async fn of_stack() -> Self {
        let config = config().await;
        let formation = aws_sdk_cloudformation::Client::new(&config);
        let found = formation.describe_stacks().stack_name(stack()).send().await.unwrap();
        let outputs = found.stacks()[0].outputs();
        let output = |name: &str| {
            let named = outputs.iter().find(|output| output.output_key() == Some(name));
            named.and_then(|output| output.output_value()).expect("it is an output").to_owned()
        };
        let bucket = objects::from_env(Calls::new().unwrap(), CALL_TIMEOUT)
            .with_bucket_name(output("BucketName"))
            .build()
            .unwrap();
        Self { table: Client::new(&config), name: output("TableName"), bucket: Arc::new(bucket) }
    }

    /// The items that contain `text` in a key or a value.
    pub async fn items(&self, text: &str) -> Vec<Item> {
        let pages = self.table.scan().table_name(&self.name).consistent_read(true);
        let mut pages = pages.into_paginator().items().send();
        let mut found = Vec::new();
        while let Some(item) = pages.next().await {
            found.push(Item(item.unwrap()));
        }
        found.retain(|item| item.contains(text));
        found
    }

    /// The names of the objects that contain `text`.
    pub async fn objects(&self, text: &str) -> BTreeSet<String> {
        let listed: Vec<_> = self.bucket.list(None).try_collect().await.unwrap();
        let names = listed.into_iter().map(|object| object.location.to_string());
        names.filter(|name| name.contains(text)).collect()
    }
}

/// An item of the table.
#[derive(Debug)]
pub struct Item(HashMap<String, AttributeValue>);

impl Item {
    /// Whether a key or a value contains `text`.
    pub fn contains(&self, text: &str) -> bool {
        let is_in = |bytes: &[u8]| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        self.0.values().any(|value| match value {
            AttributeValue::S(value) => is_in(value.as_bytes()),
            AttributeValue::B(value) => is_in(value.as_ref()),
            _ => false,
        })
    }

    /// Its key, for messages.
    pub fn key(&self) -> String {
        let part = |name: &str| self.0[name].as_s().unwrap().as_str();
        format!("{} {}", part("p"), part("s"))
    }

    /// Whether its partition begins with `prefix`.
    pub fn is_of(&self, prefix: &str) -> bool {
        self.0["p"].as_s().unwrap().starts_with(prefix)
    }

    /// Whether the table expires it.
    pub fn expires(&self) -> bool {
        self.0.contains_key("x")
    }
}
