//! List prices of AWS, in dollars, without free tiers.
//!
//! They are those of the day [`AS_OF`]. The caller passes the prices of other regions.

/// When the prices were looked up.
pub const AS_OF: &str = "2026-08-15";
/// The source of the prices.
pub const SOURCE: &str = "aws.amazon.com: the pricing pages of DynamoDB (on demand, Standard), \
                          SQS, Lambda, S3 (Standard), CloudWatch, EC2 (data transfer)";
/// The regions that have these prices.
pub const REGIONS: [&str; 3] = ["us-east-1", "us-east-2", "us-west-2"];

/// The prices of each service in dollars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// DynamoDB: a million write units.
    pub write: f64,
    /// DynamoDB: a million strongly consistent read units.
    pub read: f64,
    /// DynamoDB: a gigabyte stored for a month.
    pub table_gb: f64,
    /// DynamoDB: point-in-time recovery of a gigabyte for a month, in addition.
    pub recovery_gb: f64,
    /// SQS: a million requests to standard queues.
    pub standard: f64,
    /// SQS: a million requests to FIFO queues.
    pub fifo: f64,
    /// SQS: the surcharge of a million requests with message groups to a standard queue (fair
    /// queues).
    pub fair: f64,
    /// Lambda: a million invocations.
    pub call: f64,
    /// Lambda: a gigabyte for a second, on arm64.
    pub gb_second: f64,
    /// S3: a million PUTs.
    pub put: f64,
    /// S3: a million GETs.
    pub get: f64,
    /// S3: a gigabyte stored for a month.
    pub object_gb: f64,
    /// CloudWatch: a gigabyte of ingested logs.
    pub log_gb: f64,
    /// CloudWatch: an alarm for a month.
    pub alarm: f64,
    /// CloudWatch: a custom metric for a month.
    pub metric: f64,
    /// Data transfer: a gigabyte from a region to the internet.
    pub transfer_gb: f64,
}

/// The prices of [`REGIONS`].
pub const LIST: Prices = Prices {
    write: 0.625,
    read: 0.125,
    table_gb: 0.25,
    recovery_gb: 0.20,
    standard: 0.40,
    fifo: 0.50,
    fair: 0.10,
    call: 0.20,
    gb_second: 0.000_013_333_4,
    put: 5.0,
    get: 0.40,
    object_gb: 0.023,
    log_gb: 0.50,
    alarm: 0.10,
    metric: 0.30,
    transfer_gb: 0.09,
};

impl Prices {
    /// The names by which single prices are set.
    pub const NAMES: [&str; 16] = [
        "write",
        "read",
        "table-gb",
        "recovery-gb",
        "standard",
        "fifo",
        "fair",
        "call",
        "gb-second",
        "put",
        "get",
        "object-gb",
        "log-gb",
        "alarm",
        "metric",
        "transfer-gb",
    ];

    /// The list prices of `region`; none if they are unknown.
    pub fn of(region: &str) -> Option<Self> {
        REGIONS.contains(&region).then_some(LIST)
    }

    /// The price with this name.
    pub fn named(&mut self, name: &str) -> Option<&mut f64> {
        Some(match name {
            "write" => &mut self.write,
            "read" => &mut self.read,
            "table-gb" => &mut self.table_gb,
            "recovery-gb" => &mut self.recovery_gb,
            "standard" => &mut self.standard,
            "fifo" => &mut self.fifo,
            "fair" => &mut self.fair,
            "call" => &mut self.call,
            "gb-second" => &mut self.gb_second,
            "put" => &mut self.put,
            "get" => &mut self.get,
            "object-gb" => &mut self.object_gb,
            "log-gb" => &mut self.log_gb,
            "alarm" => &mut self.alarm,
            "metric" => &mut self.metric,
            "transfer-gb" => &mut self.transfer_gb,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_price_has_its_name() {
        let mut prices = LIST;
        for (index, name) in Prices::NAMES.iter().enumerate() {
            *prices.named(name).unwrap() = 1000.0 + index as f64;
        }
        let debug = format!("{prices:?}");
        for index in 0..Prices::NAMES.len() {
            assert!(debug.contains(&format!("{}.0", 1000 + index)), "{debug}");
        }
        assert_eq!(prices.named("dollars"), None);
        assert_eq!(Prices::of("mars-north-1"), None);
    }
}
