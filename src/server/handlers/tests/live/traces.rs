//! The trace of a request: stored with its job, and ignored when repeats are compared.

use serde_json::{Value, json};

use super::{super::ask, ALL, json, router};

#[tokio::test]
async fn a_malformed_trace_is_ignored() {
    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let router = router().await;
    let kept = async |headers: &[(&str, &str)], own: Value| {
        let headers = [&[ALL], headers].concat();
        let body = json!({"type": "invoice", "data": 1, "headers": own}).to_string();
        let (answer, body) = ask(&router, "POST", "/v1/jobs", &headers, body).await;
        assert_eq!(answer.status(), 201);
        // An empty map is not shown.
        serde_json::from_slice::<Value>(&body).unwrap().get("headers").cloned().unwrap_or(json!({}))
    };
    let state = ("tracestate", "a=1,b=2");
    assert_eq!(
        kept(&[("traceparent", GOOD), state], json!({})).await,
        json!({"traceparent": GOOD, "tracestate": "a=1,b=2"})
    );
    let long = "x".repeat(513);
    assert_eq!(
        kept(&[("traceparent", GOOD), ("tracestate", &long)], json!({})).await,
        json!({"traceparent": GOOD})
    );
    for bad in
        ["", "nonsense", &GOOD[1..], "00-00000000000000000000000000000000-b7ad6b7169203331-01"]
    {
        assert_eq!(kept(&[("traceparent", bad), state], json!({})).await, json!({}), "{bad:?}");
    }
    assert_eq!(
        kept(&[("traceparent", GOOD), ("traceparent", GOOD)], json!({})).await,
        json!({}),
        "two parents are ambiguous"
    );
    assert_eq!(
        kept(&[state], json!({})).await,
        json!({}),
        "a state without its parent means nothing"
    );
    let own = json!({"Traceparent": GOOD.replace("0af", "1af")});
    assert_eq!(
        kept(&[("traceparent", GOOD), state], own.clone()).await,
        own,
        "the job's own trace is not mixed with another"
    );
    let many: Value =
        (0..32).map(|n| (format!("x-{n}"), json!("y"))).collect::<serde_json::Map<_, _>>().into();
    assert_eq!(
        kept(&[("traceparent", GOOD)], many.clone()).await,
        many,
        "a trace does not invalidate a request"
    );
}

#[tokio::test]
async fn a_repeat_may_have_another_trace() {
    let router = router().await;
    let put = async |trace: &str, data: u8| {
        let headers = [ALL, ("traceparent", trace)];
        let (answer, body) = ask(
            &router,
            "PUT",
            "/v1/jobs/invoice/order:1",
            &headers,
            format!(r#"{{"data":{data}}}"#),
        )
        .await;
        (answer.status().as_u16(), serde_json::from_slice::<Value>(&body).unwrap())
    };
    let parent = |span: u8| format!("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b{span}-01");
    let (status, job) = put(&parent(1), 1).await;
    assert_eq!((status, &job["headers"]["traceparent"]), (201, &json!(parent(1))));
    assert_eq!(put(&parent(2), 1).await.0, 200);
    let (status, clash) = put(&parent(3), 2).await;
    assert_eq!(
        (status, &clash["code"], &clash["holder"]),
        (409, &json!("id_taken"), &json!("order:1"))
    );
    let (status, other) =
        json(&router, "PUT", "/v1/jobs/invoice/b", json!({"data": 1, "id": "c"})).await;
    assert_eq!((status, &other["field"]), (400, &json!("id")));
}
