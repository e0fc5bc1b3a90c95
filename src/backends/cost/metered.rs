//! The usage and cost of real calls, from the metrics that functions log for CloudWatch.

use serde_json::Value;

use super::Prices;

/// The total usage of some calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metered {
    /// Accepted jobs.
    pub jobs: u64,
    /// DynamoDB: write units.
    pub writes: u64,
    /// DynamoDB: read units.
    pub reads: u64,
    /// SQS: requests to standard queues, including those of Lambda's pollers for a call.
    pub standard: u64,
    /// SQS: requests to FIFO queues, including those of Lambda's pollers for a call.
    pub fifo: u64,
    /// Lambda: calls.
    pub calls: u64,
}

impl Metered {
    /// Adds the metrics in `line` of a log, if it has any.
    pub fn add(&mut self, line: &str) {
        // Skips most lines of a log cheaply.
        if !line.starts_with(r#"{"_aws""#) {
            return;
        }
        let Ok(Value::Object(line)) = serde_json::from_str(line) else {
            return;
        };
        let of = |name: &str| line.get(name).and_then(Value::as_u64).unwrap_or(0);
        self.jobs += of("tidegate_enqueued_total");
        self.calls += of("tidegate_lambda_invocations_total");
        let (units, requests) =
            (of("tidegate_dynamodb_units_total"), of("tidegate_sqs_requests_total"));
        match line.get("kind").and_then(Value::as_str) {
            Some("write") => self.writes += units,
            Some("read") => self.reads += units,
            Some("standard") => self.standard += requests,
            Some("fifo") => self.fifo += requests,
            _ => {}
        }
    }

    /// The billed units: name, number, and price of a million.
    pub fn pieces(&self, prices: &Prices) -> [(&'static str, u64, f64); 5] {
        [
            ("DynamoDB write units", self.writes, prices.write),
            ("DynamoDB read units", self.reads, prices.read),
            ("SQS requests, standard", self.standard, prices.standard + prices.fair),
            ("SQS requests, FIFO", self.fifo, prices.fifo),
            ("Lambda calls", self.calls, prices.call),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::price::LIST;

    #[test]
    fn lines_for_cloudwatch_are_summed_and_others_are_not() {
        let mut metered = Metered::default();
        for line in [
            concat!(
                r#"{"_aws":{},"kind":"write","tidegate_dynamodb_requests_total":1,"#,
                r#""tidegate_dynamodb_units_total":3}"#
            ),
            r#"{"_aws":{},"kind":"read","tidegate_dynamodb_units_total":2}"#,
            r#"{"_aws":{},"kind":"write","tidegate_dynamodb_units_total":4}"#,
            r#"{"_aws":{},"kind":"fifo","tidegate_sqs_requests_total":5}"#,
            r#"{"_aws":{},"kind":"standard","tidegate_sqs_requests_total":6}"#,
            r#"{"_aws":{},"queue":"q","tidegate_enqueued_total":7,"type":"t"}"#,
            r#"{"_aws":{},"tidegate_lambda_invocations_total":8}"#,
            r#"{"level":"INFO","tidegate_lambda_invocations_total":100}"#,
            r#"{"_aws": no JSON"#,
            "",
        ] {
            metered.add(line);
        }
        assert_eq!(
            metered,
            Metered { jobs: 7, writes: 7, reads: 2, standard: 6, fifo: 5, calls: 8 }
        );
        let dollars: f64 = metered
            .pieces(&LIST)
            .iter()
            .map(|(_, count, million)| *count as f64 * million / 1e6)
            .sum();
        assert!(
            (dollars - (7.0 * 0.625 + 2.0 * 0.125 + 6.0 * 0.5 + 5.0 * 0.5 + 8.0 * 0.2) / 1e6).abs()
                < 1e-12
        );
    }
}
