use std::collections::HashSet;

use super::*;

#[test]
fn the_smallest_mix_has_every_kind_and_outcome() {
    let jobs = mix("r", 40);
    assert!(JobKind::ALL.iter().all(|kind| jobs.iter().any(|job| job.kind == *kind)));
    for fate in [
        PlannedOutcome::Succeeds,
        PlannedOutcome::Fails,
        PlannedOutcome::Doubt,
        PlannedOutcome::Expires,
        PlannedOutcome::Cancelled,
        PlannedOutcome::Waits,
    ] {
        assert!(jobs.iter().any(|job| job.fate == fate), "{fate:?}");
    }
    let ids: HashSet<_> = jobs.iter().map(|job| &job.id).collect();
    assert_eq!(ids.len(), jobs.len());
    assert!(
        jobs.iter().all(|job| job.errand.weight <= TENANT_LIMIT),
        "each fits the limit of its tenant"
    );
}

#[test]
fn a_request_and_its_data_have_the_same_due_time() {
    let now: Timestamp = "2026-01-31T23:30:00Z".parse().unwrap();
    let jobs = mix("r", 40);
    let timed =
        jobs.iter().find(|job| matches!(job.timing, Timing::After(_))).unwrap().request(now);
    assert_eq!(timed["run_at"], timed["data"]["due_at"]);
    let open = jobs.iter().find(|job| job.timing == Timing::OpenWindow).unwrap().request(now);
    assert_eq!(open["windows"], json!([{"from": "22:30", "to": "00:30", "tz": "UTC"}]));
    let critical = jobs.iter().find(|job| job.critical).unwrap().request(now);
    assert_eq!((&critical["critical"], critical.get("weight")), (&json!(true), None));
}
