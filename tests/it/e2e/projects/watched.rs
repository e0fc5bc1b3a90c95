//! What `tidegate plugin dev --push` prints of the shadow version.

use std::{fs, path::Path};

use serde_json::json;

use crate::e2e::{
    serve::Tidegate,
    wait::{eventually, until},
};

/// The beginning of the template's rule, and a rule that differs for jobs of two types, which the
/// cases do not have.
const CHANGE: (&str, &str) = (
    "candidates.iter().map(|job| {",
    r#"candidates.iter().map(|job| {
            assert!(job.job_type != "broken", "no broken jobs");
            if job.job_type == "other" {
                tidegate_plugin::info!("{} is another", job.id);
                return Decision::hold("others wait");
            }"#,
);

/// Requires a log line, a difference and a fault of a changed rule in `output`, the file with the
/// output of the command. Its component is version 3 of the plugin `mine`.
pub async fn shows_what_is_new(tide: &Tidegate, source: &Path, output: &Path) {
    let (rule, changed) = CHANGE;
    let text = fs::read_to_string(source).unwrap();
    assert!(text.contains(rule), "{text}");
    fs::write(source, text.replace(rule, changed)).unwrap();
    eventually("the third is the shadow", || async {
        (tide.get("/v1/plugins/mine").await.is(200)["shadow"] == 3).then_some(())
    })
    .await;

    let throttler = json!({"plugin": "mine", "config": {"limit": 100}});
    tide.queue("watched", json!({"throttler": throttler})).await;
    let different = ["v3 info", " is another", "run live, hold (others wait) in the shadow"];
    let failed = ["v3 fault trapped: ", "no broken jobs"];
    for (job_type, news) in [("other", &different[..]), ("broken", &failed[..])] {
        tide.job_type(job_type, json!({"queue": "watched"})).await;
        tide.enqueue_a(job_type).await;
        tide.lease_one(job_type).await;
        until(|| async {
            let shown = fs::read_to_string(output).unwrap();
            (news.iter().all(|part| shown.contains(part)), shown)
        })
        .await;
    }
}
