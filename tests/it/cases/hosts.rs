//! Hosts that must not be called are refused wherever they are given, before anything is stored.

use serde_json::json;
use tidegate_core::{
    job::{Payload, type_config::TypeConfig},
    schedule::ScheduleConfig,
    target::{Push, TargetConfig},
    validate::Guard,
};
use tidegate_engine::{Error, testkit::builders::name};

use super::harness::{Harness, every_store, of_type};

/// The field that `error` names.
fn field(error: &Error) -> String {
    let Error::Invalid { field, .. } = error else { panic!("{error}") };
    field.clone()
}

async fn refused_everywhere(mut harness: Harness, host: &str) {
    harness.rules(|rules| {
        rules.guard = Guard::Public;
        rules.create_unknown_types = true;
    });
    let engine = &harness.engine;
    let url = format!("http://{host}/work");

    let target = Some(TargetConfig::Push(Box::new(Push::to(&url))));
    let config = TypeConfig { target, ..TypeConfig::default() };
    let error = engine.put_type(&name("pushed"), config, None).await.unwrap_err();
    assert_eq!(field(&error), "target.url", "{host}");

    let callback_url = Some(url.parse().unwrap());
    let config = TypeConfig { callback_url: callback_url.clone(), ..TypeConfig::default() };
    let error = engine.put_type(&name("called"), config, None).await.unwrap_err();
    assert_eq!(field(&error), "callback_url", "{host}");

    let mut job = of_type("work");
    job.options.callback_url = callback_url;
    let error = engine.enqueue(vec![job]).await.remove(0).unwrap_err();
    assert_eq!(field(&error), "callback_url", "{host}");

    let schedule = json!({"type": "work", "every_seconds": 60, "callback_url": url});
    let schedule: ScheduleConfig = serde_json::from_value(schedule).unwrap();
    let error = engine.put_schedule(&name("s"), schedule, Payload::null(), None).await.unwrap_err();
    assert_eq!(field(&error), "callback_url", "{host}");

    let trigger = json!({"enqueue": {"type": "work", "callback_url": url}});
    let trigger = serde_json::from_value(trigger).unwrap();
    let error = engine.put_trigger(&name("t"), trigger, None).await.unwrap_err();
    assert_eq!(field(&error), "enqueue.callback_url", "{host}");
}

#[tokio::test]
async fn a_forbidden_host_is_refused_wherever_it_is_given() {
    for host in ["127.0.0.1:9001", "10.0.0.1", "localhost", "169.254.169.254"] {
        for harness in every_store() {
            refused_everywhere(harness, host).await;
        }
    }
}
