//! The data of a deployment on AWS: a table, and the bucket with its bodies.

use std::{fmt, str::FromStr, sync::Arc};

use anyhow::bail;
use object_store::prefix::PrefixStore;
use url::{Url, form_urlencoded};

use super::location::TABLE_SCHEME;
use crate::cli::{UsageError, aws::Cloud};
use tidegate_backends::{
    dynamodb::DynamoStore,
    system::{SystemClock, SystemEntropy},
};
use tidegate_engine::moves::Side;

/// Where a table and its objects are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableAddress {
    /// The name of the table.
    table: String,
    /// The bucket for large bodies and plugins.
    bucket: String,
    /// The prefix of its objects' names; empty, or with a slash at the end.
    prefix: String,
    /// The region; none for that of the environment.
    region: Option<String>,
    /// The endpoint of all AWS services, for a stack on this machine; none for that of the environment.
    endpoint: Option<Url>,
}

/// Why a text is not the address of a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}: dynamodb://TABLE?bucket=BUCKET is expected, with prefix, region and endpoint if they are needed"
)]
pub(super) struct BadAddress(String);

impl FromStr for TableAddress {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = |what: &str| BadAddress(what.to_owned());
        let rest =
            text.strip_prefix(TABLE_SCHEME).ok_or_else(|| bad("the scheme is another one"))?;
        let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
        let letters = |letter: u8| letter.is_ascii_alphanumeric() || b"_.-".contains(&letter);
        if table.is_empty() || !table.bytes().all(letters) {
            return Err(bad(
                "the table needs a name of letters, digits, hyphens, dots and underscores",
            ));
        }
        let mut address = Self {
            table: table.to_owned(),
            bucket: String::new(),
            prefix: String::new(),
            region: None,
            endpoint: None,
        };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "bucket" => address.bucket = value.into_owned(),
                "prefix" => address.prefix = value.into_owned(),
                "region" => address.region = Some(value.into_owned()),
                "endpoint" => {
                    let url = Url::parse(&value).map_err(|_| bad("the endpoint is no URL"))?;
                    address.endpoint = Some(url);
                }
                other => return Err(BadAddress(format!("there is no parameter {other}"))),
            }
        }
        if address.bucket.is_empty() {
            return Err(bad("the bucket is missing"));
        }
        if !address.prefix.is_empty() && !address.prefix.ends_with('/') {
            return Err(bad("the prefix needs a slash at the end"));
        }
        Ok(address)
    }
}

impl fmt::Display for TableAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TABLE_SCHEME}{}?bucket={}", self.table, self.bucket)?;
        if !self.prefix.is_empty() {
            write!(f, "&prefix={}", self.prefix)?;
        }
        self.region.iter().try_for_each(|region| write!(f, "&region={region}"))?;
        self.endpoint.iter().try_for_each(|endpoint| write!(f, "&endpoint={endpoint}"))
    }
}

impl TableAddress {
    /// The account of the operator, in the region of the address or of the environment.
    async fn account(&self) -> anyhow::Result<Cloud> {
        Cloud::connect_at(self.endpoint.as_ref(), self.region.clone()).await
    }

    /// Whether the table exists.
    ///
    /// # Errors
    ///
    /// There is no region, or AWS does not answer or refuses the request.
    pub(super) async fn has_store(&self) -> anyhow::Result<bool> {
        Ok(self.account().await?.table(&self.table).exists().await?)
    }

    /// The table and its objects.
    ///
    /// # Errors
    ///
    /// The table does not exist, there are no credentials, or AWS refuses a request.
    pub(super) async fn open(&self) -> anyhow::Result<Side> {
        let cloud = self.account().await?;
        let table = cloud.table(&self.table);
        if !table.exists().await? {
            bail!(UsageError(format!(
                "the table {} does not exist: make a deployment with `tidegate aws deploy`, and name \
                 its table and its bucket",
                self.table
            )));
        }
        let clock = Arc::new(SystemClock);
        let store = DynamoStore::new(Arc::new(table), clock, Arc::new(SystemEntropy));
        let bucket = cloud.lasting_bucket(&self.bucket)?;
        let objects = Arc::new(PrefixStore::new(bucket, self.prefix.as_str()));
        // Another profile may have another region.
        let place = Self { region: Some(cloud.region), ..self.clone() }.to_string();
        Ok(Side { store: Arc::new(store), objects, inbox: None, place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_table_is_read_and_written() {
        for text in [
            "dynamodb://jobs?bucket=bodies",
            "dynamodb://my-stack-Table-1X?bucket=b.c&prefix=a/b/&region=eu-west-1",
            "dynamodb://t?bucket=b&region=us-east-1&endpoint=http://127.0.0.1:4566/",
        ] {
            let address: TableAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn an_address_that_is_incomplete_or_wrong_is_refused() {
        for (text, problem) in [
            ("s3://t?bucket=b", "the scheme"),
            ("dynamodb://?bucket=b", "needs a name"),
            ("dynamodb://t/x?bucket=b", "needs a name"),
            ("dynamodb://t", "the bucket is missing"),
            ("dynamodb://t?bucket=b&prefix=p", "a slash"),
            ("dynamodb://t?bucket=b&shards=2", "no parameter shards"),
            ("dynamodb://t?bucket=b&endpoint=here", "no URL"),
        ] {
            let error = text.parse::<TableAddress>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
