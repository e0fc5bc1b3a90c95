//! Refused bodies of requests: not valid in their media type, too deep, or too large.

use reqwest::Method;
use serde_json::json;

use super::serve::{Setup, Tidegate};

#[tokio::test]
async fn a_body_that_is_not_valid_in_its_media_type_is_refused() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    for (media, body) in [
        ("application/json", &b"{\"type\": \"t\", \"data\": "[..]),
        ("application/json", b"{\"type\": \"t\", \"data\": 1} extra"),
        ("application/json", b"{\"type\": \"t\", \"data\": \"\xff\"}"),
        ("application/json", b""),
        ("application/msgpack", b"\x82\xa4type\xa1t\xa4data"),
        ("application/msgpack", b"\x82\xa4type\xa1t\xa4data\xc1"),
        ("application/msgpack", b""),
    ] {
        let answer =
            tide.send(Method::POST, "/v1/jobs", &[("content-type", media)], body.to_vec()).await;
        assert_eq!(
            answer.status,
            400,
            "{media} {:?}: {}",
            String::from_utf8_lossy(body),
            String::from_utf8_lossy(&answer.body)
        );
        answer.problem(400, "invalid_body");
    }
    let twice = "{\"type\": \"t\", \"data\": 1, \"data\": 2}";
    let media = [("content-type", "application/json")];
    tide.send(Method::POST, "/v1/jobs", &media, twice).await.problem(400, "invalid_field");
    tide.send(Method::POST, "/v1/jobs", &[], twice).await.problem(415, "unsupported_media_type");
    assert_eq!(tide.get("/v1/jobs").await.is(200)["jobs"], json!([]));
}

#[tokio::test]
async fn deep_values_are_refused_in_both_encodings() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    let lists = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let json =
        |depth: usize| format!("{{\"type\": \"t\", \"data\": {}}}", lists(depth)).into_bytes();
    let packed = |depth: usize| {
        let mut bytes = b"\x82\xa4type\xa1t\xa4data".to_vec();
        bytes.extend(std::iter::repeat_n(0x91, depth - 1).chain([0x90]));
        bytes
    };
    for (media, make) in
        [("application/json", &json as &dyn Fn(usize) -> Vec<u8>), ("application/msgpack", &packed)]
    {
        let headers = [("content-type", media), ("accept", "application/json")];
        let post = async |depth| tide.send(Method::POST, "/v1/jobs", &headers, make(depth)).await;
        let fits = post(64).await.is(201);
        assert_eq!(fits["data"].to_string(), lists(64));
        for depth in [65, 129, 100_000] {
            let answer = post(depth).await;
            assert_eq!(answer.status, 400, "{media} {depth}: {}", answer.value());
            answer.problem(400, "nesting_too_deep");
        }
    }
    assert_eq!(tide.get("/v1/jobs").await.is(200)["jobs"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn bodies_are_taken_up_to_the_limit_and_not_a_byte_more() {
    let tide = Setup::new().env("TIDEGATE_MAX_DATA_BYTES", "1048576").start().await;
    tide.job_type("t", json!({})).await;
    let most = 1 << 20;
    for (length, status) in [
        (101 * 1024, 201),
        (most, 201),
        (most + 1, 413),
        (most + (200 << 10), 413),
        (most + (15 << 20), 413),
    ] {
        let data = format!("\"{}\"", "d".repeat(length - 2));
        let body = format!("{{\"type\": \"t\", \"data\": {data}}}");
        let media = [("content-type", "application/json")];
        let answer = tide.send(Method::POST, "/v1/jobs", &media, body).await;
        assert_eq!(answer.status, status, "{length}");
        if status == 413 {
            let code = answer.value()["code"].as_str().unwrap().to_owned();
            assert!(["data_too_large", "body_too_large"].contains(&code.as_str()), "{code}");
            continue;
        }
        let id = answer.value()["id"].as_str().unwrap().to_owned();
        assert_eq!(tide.job(&id).await["data"].as_str().map(str::len), Some(length - 2));
        let listed = tide.get("/v1/jobs?limit=1").await.is(200);
        assert_eq!(
            (listed["jobs"][0].get("data"), &listed["jobs"][0]["data_bytes"]),
            (None, &json!(length))
        );
        let lease = tide.lease_one("t").await;
        assert_eq!(lease.whole["job"]["data"].as_str().map(str::len), Some(length - 2));
        let report = |length: usize| {
            format!(
                "{{\"attempt\": 1, \"status\": \"succeeded\", \"result\": \"{}\"}}",
                "r".repeat(length - 2)
            )
        };
        tide.send(Method::POST, &lease.path, &media, report(most + 1)).await.blames(
            413,
            "too_large",
            "result",
        );
        tide.send(Method::POST, &lease.path, &media, report(length)).await.is(200);
        let result = tide.get(&format!("{}/result", lease.path)).await.is(200);
        assert_eq!(result.as_str().map(str::len), Some(length - 2));
    }
    // The same at the limit over MessagePack, whose frame is smaller than JSON's.
    let mut packed = b"\x82\xa4type\xa1t\xa4data\xc6".to_vec();
    packed.extend((most as u32 - 5).to_be_bytes());
    packed.resize(packed.len() + most - 5, 7);
    let media = [("content-type", "application/msgpack"), ("accept", "application/json")];
    tide.send(Method::POST, "/v1/jobs", &media, packed.clone()).await.is(201);
    packed[14..18].copy_from_slice(&(most as u32 - 4).to_be_bytes());
    packed.push(7);
    tide.send(Method::POST, "/v1/jobs", &media, packed).await.blames(413, "data_too_large", "data");
}
