//! The table: its state, its keys, its expiry, and the permissions to read and write it.

use aws_sdk_dynamodb::{
    operation::describe_table::DescribeTableError,
    types::{KeyType, TableDescription, TableStatus, TimeToLiveStatus},
};
use bytes::Bytes;

use super::{
    CloudHealthCheck,
    refusal::{remedy, service_refused},
};
use tidegate_backends::dynamodb::{
    Key,
    table::{Change, EXPIRES, Item, PageQuery, Table, Val},
};
use tidegate_core::port::{
    StoreError,
    health_check::{Check, CheckLevel},
};

/// The time until the table deletes a probe that an interrupted check left behind, in seconds.
const PROBE_TTL_SECONDS: u64 = 86_400;

/// The operation on the probe that failed, and its error.
type FailedStep = (&'static str, StoreError);

/// What the descriptions of the table show.
pub(super) struct TableChecks {
    pub(super) checks: Vec<Check>,
    /// Whether the service answered that there is no such table.
    pub(super) is_missing: bool,
}

impl CloudHealthCheck {
    /// Checks whether the table exists with its keys, and whether it deletes expired items.
    pub(super) async fn check_table(&self) -> TableChecks {
        let name = &self.settings.table;
        let region = self.region.as_deref().unwrap_or("no region");
        let found = match self.dynamodb.describe_table().table_name(name).send().await {
            Ok(found) => found.table.unwrap_or_else(|| TableDescription::builder().build()),
            Err(error) => {
                let check = service_refused("table", &format!("{name} in {region}"), &error);
                let is_missing = error
                    .as_service_error()
                    .is_some_and(DescribeTableError::is_resource_not_found_exception);
                return TableChecks { checks: vec![check], is_missing };
            }
        };
        let checks = vec![table_state(name, region, &found), self.check_expiry().await];
        TableChecks { checks, is_missing: false }
    }

    async fn check_expiry(&self) -> Check {
        let (name, about) = (&self.settings.table, "table expiry");
        let found = match self.dynamodb.describe_time_to_live().table_name(name).send().await {
            Ok(answer) => answer.time_to_live_description,
            Err(error) => return service_refused(about, name, &error),
        };
        let status = found.as_ref().and_then(|found| found.time_to_live_status());
        let enabled = status.is_some_and(|status| {
            matches!(status, TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)
        });
        let attribute = found.as_ref().and_then(|found| found.attribute_name()).unwrap_or("none");
        if enabled && attribute == EXPIRES.to_string() {
            return Check::ok(about, format!("items expire by the attribute {attribute}"));
        }
        let state = if enabled { "on" } else { "off" };
        Check::new(
            CheckLevel::Warning,
            about,
            format!("time to live is {state}, with the attribute {attribute}"),
            format!(
                "finished jobs are never deleted and cost storage: \
                 `aws dynamodb update-time-to-live --table-name {name} \
                 --time-to-live-specification Enabled=true,AttributeName={EXPIRES}`"
            ),
        )
    }

    /// Performs on a probe each kind of operation that jobs need.
    pub(super) async fn check_permissions(&self) -> Check {
        let about = "table permissions";
        match self.exercise_probe().await {
            Ok(true) => {
                Check::ok(about, "a probe was written, read, updated on a condition and removed")
            }
            Ok(false) => Check::new(
                CheckLevel::Error,
                about,
                "a conditional write ignored its condition",
                "the service at the endpoint does not behave like DynamoDB: limits would not hold",
            ),
            Err((step, error)) => {
                let text = error.chain().to_string();
                let found = format!("{step} failed: {text}");
                Check::new(CheckLevel::Error, about, found, remedy(&text))
            }
        }
    }

    /// Writes, reads and removes probes. Returns whether every answer was the expected one.
    async fn exercise_probe(&self) -> Result<bool, FailedStep> {
        let table = &self.table;
        let partition = format!("X#doctor#{:032x}", self.entropy.bits());
        let expires = self.clock.now().millis().max(0) as u64 / 1000 + PROBE_TTL_SECONDS;
        let item = |s: &str| {
            Item::new(
                Key { p: partition.clone(), s: s.into() },
                [('v', Val::N(1)), (EXPIRES, Val::N(expires))],
            )
        };
        let delete = |s: &str, when| Change::Delete { key: item(s).key, when };
        let update = |set, when| Change::Update {
            key: item("b").key,
            set: vec![set],
            remove: Vec::new(),
            when: ('v', Val::N(when)),
        };
        let matching = update(('d', Val::B(Bytes::from_static(b"probe"))), 1);
        let conflicting = update(('v', Val::N(3)), 2);
        let query = PageQuery {
            p: partition.clone(),
            from: "a".into(),
            to: "z".into(),
            limit: None,
            backward: false,
            after: None,
        };
        let step = |what: &'static str| move |error: StoreError| (what, error);

        table.write(&[Change::Put(item("a"))]).await.map_err(step("a write"))?;
        table.write(&[Change::Insert(item("b"))]).await.map_err(step("an insert"))?;
        let changed = table.write(&[matching]).await.map_err(step("a conditional write"))?;
        let refused = table.write(&[conflicting]).await.map_err(step("a conditional write"))?;
        let read = table.get(&[item("b").key]).await.map_err(step("a read"))?;
        let queried = table.query(&query).await.map_err(step("a query"))?;
        let committed = table
            .together(&[Change::Insert(item("c")), delete("a", None)])
            .await
            .map_err(step("a transaction"))?;
        let removed = table
            .write(&[delete("b", Some(('v', Val::N(1)))), delete("c", None)])
            .await
            .map_err(step("a removal"))?;

        let conditions_held =
            changed == [true] && refused == [false] && committed && removed == [true, true];
        Ok(conditions_held && queried.items.len() == 2 && read.iter().all(Option::is_some))
    }
}

/// Checks the keys and the status of the described table.
fn table_state(name: &str, region: &str, found: &TableDescription) -> Check {
    let about = "table";
    let keys: Vec<(&str, &KeyType)> =
        found.key_schema().iter().map(|key| (key.attribute_name(), key.key_type())).collect();
    if keys != [("p", &KeyType::Hash), ("s", &KeyType::Range)] {
        let keys: Vec<String> = keys.iter().map(|(key, role)| format!("{key} ({role})")).collect();
        return Check::new(
            CheckLevel::Error,
            about,
            format!("{name} has the keys {}; p (HASH), s (RANGE) are expected", keys.join(", ")),
            "TIDEGATE_TABLE names the table of another application: name the stack's table",
        );
    }
    let status = found.table_status().map_or("unknown", TableStatus::as_str);
    if status == "ACTIVE" || status == "UPDATING" {
        Check::ok(about, format!("{name} in {region} is {status}, with its keys"))
    } else {
        Check::new(
            CheckLevel::Error,
            about,
            format!("{name} is {status}"),
            "wait until it is ACTIVE, and find out what changes it",
        )
    }
}
