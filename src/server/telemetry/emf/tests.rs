use std::collections::BTreeSet;

use metrics::{counter, gauge, histogram, with_local_recorder};

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// Checks a line against the specification of the format, section by section: root node, metadata
/// object, metric directive, metric definition, target members. The bounds are those of CloudWatch.
fn check(line: &str) -> Value {
    assert!(line.len() <= 256 << 10, "a log event has at most 256 KiB, not {}", line.len());
    let root: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert_eq!(members(&root["_aws"]), ["CloudWatchMetrics", "Timestamp"]);
    assert!(
        root["_aws"]["Timestamp"].as_u64().is_some_and(|millis| millis > 1_000_000_000_000),
        "milliseconds since the epoch"
    );
    let directives = root["_aws"]["CloudWatchMetrics"].as_array().unwrap();
    assert!(!directives.is_empty());
    for directive in directives {
        assert_eq!(members(directive), ["Dimensions", "Metrics", "Namespace"]);
        assert!(
            text(&directive["Namespace"], 255)
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || "._-/#:".contains(letter))
        );
        let mut targets = BTreeSet::from(["_aws".to_owned()]);
        check_dimensions(&root, directive, &mut targets);
        check_metrics(&root, directive, &mut targets);
        assert_eq!(
            targets,
            members(&root).into_iter().collect(),
            "each member of the line is declared, and nothing else"
        );
    }
    root
}

fn check_dimensions(root: &Value, directive: &Value, targets: &mut BTreeSet<String>) {
    for set in directive["Dimensions"].as_array().unwrap() {
        let set = set.as_array().unwrap();
        assert!(set.len() <= 30, "a dimension set has at most 30");
        for name in set {
            let value = text(&root[text(name, 250)], 1024);
            assert!(!value.starts_with(':') && targets.insert(text(name, 250)), "{name}");
        }
    }
}

fn check_metrics(root: &Value, directive: &Value, targets: &mut BTreeSet<String>) {
    let metrics = directive["Metrics"].as_array().unwrap();
    assert!(
        (1..=100).contains(&metrics.len()),
        "a directive has at most 100 metrics, not {}",
        metrics.len()
    );
    for metric in metrics {
        assert_eq!(members(metric), ["Name", "Unit"]);
        assert!(
            ["Seconds", "Bytes", "Count"].contains(&text(&metric["Unit"], 20).as_str()),
            "{metric}"
        );
        let name = text(&metric["Name"], 255);
        assert!(targets.insert(name.clone()), "{name} names two members");
        match &root[&name] {
            Value::Number(_) => {}
            many => {
                assert_eq!(members(many), ["Counts", "Values"]);
                let (values, counts) =
                    (many["Values"].as_array().unwrap(), many["Counts"].as_array().unwrap());
                assert!(
                    (1..=100).contains(&values.len()) && values.len() == counts.len(),
                    "{many}"
                );
                assert!(
                    values.iter().all(Value::is_number)
                        && counts.iter().all(|count| count.as_u64().is_some_and(|n| n > 0))
                );
            }
        }
    }
}

fn members(value: &Value) -> Vec<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

/// The string `value`, which must be ASCII of 1 to `most` bytes.
fn text(value: &Value, most: usize) -> String {
    let text = value.as_str().unwrap_or_else(|| panic!("{value} is not a string")).to_owned();
    assert!(
        (1..=most).contains(&text.len()) && text.is_ascii() && !text.trim().is_empty(),
        "{text:?}"
    );
    text
}

fn lines(flushed: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(flushed).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines().map(check).collect()
}

/// A recorder with what `measure` recorded.
fn measured(measure: impl FnOnce()) -> Emf {
    let emf = Emf::new("Team/tidegate");
    with_local_recorder(&emf, measure);
    emf
}

#[test]
fn each_set_of_labels_has_a_line_with_all_its_metrics() {
    let emf = measured(|| {
        counter!("enqueued_total", "queue" => "mail", "type" => "invoice").increment(2);
        counter!("enqueued_total", "queue" => "mail", "type" => "invoice").increment(3);
        counter!("ended_total", "type" => "invoice", "queue" => "mail").increment(1);
        gauge!("running_weight", "queue" => "mail").set(7.5);
        gauge!("free_bytes").set(1024.0);
    });
    let lines = lines(&emf.flush(NOW));
    assert_eq!(
        lines,
        [
            json!({"_aws": {"Timestamp": 1_700_000_000_000_u64, "CloudWatchMetrics": [
                {"Namespace": "Team/tidegate", "Dimensions": [[]],
                 "Metrics": [{"Name": "free_bytes", "Unit": "Bytes"}]}]},
                "free_bytes": 1024.0}),
            json!({"_aws": {"Timestamp": 1_700_000_000_000_u64, "CloudWatchMetrics": [
                {"Namespace": "Team/tidegate", "Dimensions": [["queue"]],
                 "Metrics": [{"Name": "running_weight", "Unit": "Count"}]}]},
                "queue": "mail", "running_weight": 7.5}),
            json!({"_aws": {"Timestamp": 1_700_000_000_000_u64, "CloudWatchMetrics": [
                {"Namespace": "Team/tidegate", "Dimensions": [["queue", "type"]],
                 "Metrics": [{"Name": "ended_total", "Unit": "Count"},
                             {"Name": "enqueued_total", "Unit": "Count"}]}]},
                "queue": "mail", "type": "invoice", "ended_total": 1, "enqueued_total": 5}),
        ]
    );
}

#[test]
fn a_flush_has_everything_since_the_last_and_nothing_twice() {
    let emf = Emf::new("n");
    let count = || with_local_recorder(&emf, || counter!("c"));
    count().increment(2);
    with_local_recorder(&emf, || histogram!("h_seconds").record(1.0));
    assert_eq!(lines(&emf.flush(NOW))[0]["c"], 2);
    assert!(emf.flush(NOW).is_empty(), "nothing happened since");
    std::thread::scope(|scope| {
        let counting: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..10_000).for_each(|_| count().increment(1))))
            .collect();
        let mut seen = 0;
        let sum = |flushed: &[u8]| {
            lines(flushed).iter().map(|line| line["c"].as_u64().unwrap()).sum::<u64>()
        };
        while counting.iter().any(|counting| !counting.is_finished()) {
            seen += sum(&emf.flush(NOW));
        }
        for counting in counting {
            counting.join().unwrap();
        }
        assert_eq!(seen + sum(&emf.flush(NOW)), 40_000);
    });
}

#[test]
fn a_histogram_keeps_all_counts_and_approximate_values() {
    let values: Vec<f64> =
        (0..200).map(|step| 0.0003 * 1.08_f64.powi(step)).filter(|value| *value < 4000.0).collect();
    for value in &values {
        let emf = measured(|| histogram!("h_seconds").record(*value));
        let shown = lines(&emf.flush(NOW))[0]["h_seconds"]["Values"][0].as_f64().unwrap();
        assert!((shown / value - 1.0).abs() < 0.092, "{value} is shown as {shown}");
    }
    let emf = measured(|| {
        let histogram = histogram!("h_seconds");
        for value in values.iter().chain(&[0.0, -1.0, 1e-9, 1e9, f64::INFINITY]) {
            histogram.record(*value);
        }
        histogram.record_many(0.5, 1_000_000);
        histogram.record(f64::NAN);
    });
    let line = lines(&emf.flush(NOW)).remove(0);
    let counts: u64 = line["h_seconds"]["Counts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|count| count.as_u64().unwrap())
        .sum();
    assert_eq!(counts, values.len() as u64 + 5 + 1_000_000);
    let shown: Vec<f64> = line["h_seconds"]["Values"]
        .as_array()
        .unwrap()
        .iter()
        .map(|value| value.as_f64().unwrap())
        .collect();
    assert_eq!((shown.first(), shown.last()), (Some(&0.0), Some(&4096.0)));
    assert!(shown.is_sorted());
}

#[test]
fn a_line_has_at_most_100_metrics() {
    let emf = measured(|| {
        for metric in 0..250 {
            let histogram =
                histogram!(format!("a_name_of_the_usual_length_{metric}_seconds"), "queue" => "q");
            (0..30_000)
                .step_by(7)
                .for_each(|step| histogram.record(f64::from(step) * f64::from(step) / 100_000.0));
        }
    });
    let lines = lines(&emf.flush(NOW));
    assert_eq!(lines.len(), 3, "250 metrics are three lines");
}

#[test]
fn labels_become_dimensions_that_cloudwatch_accepts() {
    let emf = measured(|| {
        for value in ["", " ", ":x", "café", "a\nb", &"x".repeat(2000)] {
            gauge!("g", "label" => value.to_owned()).set(1.0);
        }
        gauge!("not_a_number").set(f64::NAN);
        let many: Vec<metrics::Label> =
            (0..40).map(|n| metrics::Label::new(format!("l{n:02}"), "v")).collect();
        gauge!("wide", many).set(1.0);
    });
    let mut shown: Vec<_> = lines(&emf.flush(NOW))
        .iter()
        .filter_map(|line| Some(line["label"].as_str()?.to_owned()))
        .collect();
    shown.sort_unstable();
    shown.dedup();
    assert_eq!(shown, ["-", "?x", "a?b", "caf?", &"x".repeat(1024)]);
}
