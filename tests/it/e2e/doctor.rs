//! `doctor` on the embedded server.

use serde_json::json;

use super::serve::Tidegate;

#[tokio::test]
async fn doctor_lists_the_checks_of_a_healthy_server() {
    let tide = Tidegate::start().await;
    let said = tide.get("/v1/doctor").await.is(200);
    assert_eq!(
        (&said["ok"], &said["version"]),
        (&json!(true), &json!(env!("CARGO_PKG_VERSION"))),
        "{said}"
    );
    let checks = said["checks"].as_array().unwrap();
    for about in [
        "version",
        "store",
        "objects",
        "plugins",
        "public URL",
        "encryption key",
        "database",
        "disk",
    ] {
        let check = checks
            .iter()
            .find(|check| check["about"] == about)
            .unwrap_or_else(|| panic!("nothing about {about}: {said}"));
        assert!(check["level"] == "ok" || about == "disk", "{check}");
    }
    assert!(
        checks.iter().all(|check| check["about"] != "maintenance sweep"),
        "a process that stays needs none: {said}"
    );
    let left = std::fs::read_dir(tide.data().join("objects/doctor")).map_or(0, Iterator::count);
    assert_eq!(left, 0);

    let text = tide.cli_as(None, &["doctor", "--all"]).await.ok();
    assert!(text.contains("a probe was put, read, listed and removed"), "{text}");
}

#[tokio::test]
async fn a_fault_below_a_server_is_reported_with_its_remedy() {
    let tide = Tidegate::start().await;
    // Someone removed its directory for large bodies.
    let objects = tide.data().join("objects");
    std::fs::remove_dir_all(&objects).unwrap();
    std::fs::write(&objects, "in the way").unwrap();
    let said = tide.get("/v1/doctor").await.is(200);
    assert_eq!(said["ok"], json!(false), "{said}");
    let check = said["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["about"] == "objects")
        .cloned()
        .unwrap();
    assert!(
        check["level"] == "error"
            && check["finding"].as_str().unwrap().contains("could not be put"),
        "{check}"
    );
    assert!(check["advice"].as_str().unwrap().contains("put, get, list and delete"), "{check}");
}
