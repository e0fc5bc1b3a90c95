//! Every route is in the document, with its scope, its errors and its parameters.

use std::collections::BTreeSet;

use serde_json::Value;

use super::document;

/// Every operation as `method path`.
fn operations(document: &Value) -> BTreeSet<String> {
    let paths = document["paths"].as_object().unwrap();
    let named = |path: &String, item: &Value| {
        item.as_object()
            .unwrap()
            .keys()
            .map(|method| format!("{method} {path}"))
            .collect::<Vec<_>>()
    };
    paths.iter().flat_map(|(path, item)| named(path, item)).collect()
}

#[test]
fn every_route_is_documented() {
    let wanted = "
        get /healthz, get /metrics, get /openapi.json, get /readyz, get /v1/audit, get /v1/dead-letters,
        post /v1/dead-letters/replay, delete /v1/dead-letters/{id}, get /v1/dead-letters/{id},
        post /v1/dead-letters/{id}/replay, get /v1/dev/clock, post /v1/dev/clock, get /v1/doctor, get /v1/errors, post /v1/events, get /v1/job-types,
        delete /v1/job-types/{type}, get /v1/job-types/{type}, patch /v1/job-types/{type},
        put /v1/job-types/{type}, get /v1/jobs, post /v1/jobs, post /v1/jobs/batch,
        post /v1/jobs/cancel, post /v1/jobs/patch, post /v1/jobs/replay, get /v1/jobs/{id}, post /v1/jobs/{id}/replay,
        delete /v1/jobs/{type}/{id}, get /v1/jobs/{type}/{id}, patch /v1/jobs/{type}/{id},
        post /v1/jobs/{type}/{id}, put /v1/jobs/{type}/{id}, get /v1/jobs/{type}/{id}/explain,
        post /v1/jobs/{type}/{id}/heartbeat, get /v1/jobs/{type}/{id}/log,
        post /v1/jobs/{type}/{id}/replay, get /v1/jobs/{type}/{id}/result, post /v1/leases, get /v1/operations/{id}, get /v1/overview, get /v1/plugins,
        delete /v1/plugins/{plugin}, get /v1/plugins/{plugin}, put /v1/plugins/{plugin},
        get /v1/plugins/{plugin}/calls, get /v1/plugins/{plugin}/calls/{id}, delete /v1/plugins/{plugin}/recording,
        put /v1/plugins/{plugin}/recording, get /v1/plugins/{plugin}/differences, get /v1/plugins/{plugin}/faults,
        get /v1/plugins/{plugin}/logs, post /v1/plugins/{plugin}/prune, post /v1/plugins/{plugin}/rollback,
        delete /v1/plugins/{plugin}/shadow, put /v1/plugins/{plugin}/shadow,
        get /v1/plugins/{plugin}/versions, get /v1/plugins/{plugin}/versions/{number}/component,
        get /v1/queues, delete /v1/queues/{queue}, get /v1/queues/{queue}, patch /v1/queues/{queue},
        put /v1/queues/{queue}, get /v1/queues/{queue}/explain, get /v1/queues/{queue}/history, get /v1/job-types/{type}/history, get /v1/stream, post /v1/queues/{queue}/pause,
        post /v1/queues/{queue}/purge,
        post /v1/queues/{queue}/resume, post /v1/queues/{queue}/simulate, get /v1/session,
        get /v1/limits, get /v1/settings, get /v1/schedules, delete /v1/schedules/{schedule},
        get /v1/schedules/{schedule}, patch /v1/schedules/{schedule}, put /v1/schedules/{schedule},
        post /v1/schedules/{schedule}/pause, post /v1/schedules/{schedule}/resume,
        post /v1/schedules/{schedule}/run, get /v1/tokens, post /v1/tokens, delete /v1/tokens/{id},
        get /v1/triggers, delete /v1/triggers/{trigger}, get /v1/triggers/{trigger},
        put /v1/triggers/{trigger}, post /v1/triggers/{trigger}/test, get /v1/workers, delete /v1/workers/{worker},
        put /v1/workers/{worker}, post /v1/workers/{worker}/drain, get /v1/workers/{worker}/history,
        post /v1/workers/{worker}/stop, post /v1/workers/{worker}/undrain";
    let wanted: BTreeSet<String> =
        wanted.split(',').map(|operation| operation.trim().to_owned()).collect();
    assert_eq!(operations(&document()), wanted);
}

#[test]
fn every_operation_documents_its_scope_and_errors() {
    let document = document();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let name = format!("{method} {path}");
            assert!(
                operation["operationId"].is_string() && operation["summary"].is_string(),
                "{name} has no id or no summary"
            );
            let open = operation["security"]
                .as_array()
                .unwrap_or_else(|| panic!("{name} has no security"));
            let guarded = open.iter().any(|scheme| scheme.get("bearer").is_some());
            assert_eq!(
                guarded,
                !["/healthz", "/readyz", "/openapi.json", "/v1/limits"].contains(&path.as_str()),
                "{name}"
            );
            let responses = operation["responses"].as_object().unwrap();
            assert_eq!(guarded, responses.contains_key("401"), "{name}");
            let has_body = operation.get("requestBody").is_some();
            assert!(!has_body || responses.contains_key("408"), "{name}");
            for status in ["400", "403", "406", "413", "414", "415", "431", "500", "503"] {
                assert!(responses.contains_key(status), "{name} {status}");
            }
            for (status, response) in responses {
                let words = response["description"].as_str().unwrap();
                assert!(
                    !words.is_empty() && (status.as_str() < "400" || words.contains('`')),
                    "{name} {status} names no code"
                );
            }
            let named: BTreeSet<&str> = path
                .split('/')
                .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
                .collect();
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let documented: BTreeSet<&str> = parameters
                .filter(|parameter| parameter["in"] == "path")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            assert_eq!(named, documented, "{name}");
        }
    }
    let ids: Vec<&str> = document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|item| item.as_object().unwrap().values())
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    assert_eq!(
        ids.iter().collect::<BTreeSet<_>>().len(),
        ids.len(),
        "operation ids are unique: {ids:?}"
    );
}

#[test]
fn every_reference_resolves() {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|inner| references(inner, found));
            }
            Value::Array(items) => items.iter().for_each(|inner| references(inner, found)),
            _ => {}
        }
    }
    let document = document();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 50, "{found:?}");
    for reference in found {
        assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    }
}

/// The schemas of the parameters and of the properties with this name in `value`, a part of a
/// request, and in what it refers to.
fn schemas_named<'a>(
    (document, value): (&'a Value, &'a Value),
    name: &str,
    seen: &mut BTreeSet<&'a str>,
    found: &mut Vec<&'a Value>,
) {
    if value["name"] == name && value["in"].is_string() {
        found.push(&value["schema"]);
    }
    found.extend(value["properties"].get(name));
    if let Some(reference) = value["$ref"].as_str().filter(|reference| seen.insert(reference)) {
        let schema = document.pointer(reference.trim_start_matches('#')).unwrap();
        schemas_named((document, schema), name, seen, found);
    }
    let inner = value.as_object().into_iter().flat_map(|fields| fields.values());
    for inner in inner.chain(value.as_array().into_iter().flatten()) {
        schemas_named((document, inner), name, seen, found);
    }
}

#[test]
fn names_numbers_and_waits_have_their_bounds() {
    let document = document();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let (name, schema) = (parameter["name"].as_str().unwrap(), &parameter["schema"]);
                let is_name = parameter["in"] == "path" && !matches!(name, "worker" | "number");
                // Ids that the server draws are its own matter.
                let is_drawn = name == "id" && !path.starts_with("/v1/jobs/");
                if is_name && !is_drawn {
                    assert!(schema["pattern"].is_string(), "{method} {path} {name}: {schema}");
                }
                if is_name || name == "worker" {
                    let is_bounded = is_drawn || schema["maxLength"].is_u64();
                    assert!(is_bounded, "{method} {path} {name}: {schema}");
                }
            }
        }
    }
    for name in ["limit", "wait", "attempt", "capacity", "concurrency"] {
        let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
        let items = document["paths"].as_object().unwrap().values();
        for operation in items.flat_map(|item| item.as_object().unwrap().values()) {
            for part in [&operation["parameters"], &operation["requestBody"]] {
                schemas_named((&document, part), name, &mut seen, &mut found);
            }
        }
        assert!(!found.is_empty(), "{name}");
        for schema in found {
            let is_bounded = schema["minimum"].is_number() && schema["maximum"].is_number();
            assert!(is_bounded, "{name}: {schema}");
        }
    }
    let parameters = document["paths"]["/v1/jobs"]["get"]["parameters"].as_array().unwrap();
    for map in ["attribute", "data"] {
        let map = parameters.iter().find(|parameter| parameter["name"] == map).unwrap();
        assert_eq!((&map["style"], &map["explode"]), (&"deepObject".into(), &true.into()));
    }
}

#[test]
fn no_schema_has_a_default() {
    fn check(value: &Value, at: &str) {
        match value {
            Value::Object(fields) => {
                for (name, inner) in fields {
                    // A property may have this name, and a response.
                    let is_name = at.ends_with("/properties") || at.ends_with("/responses");
                    let is_keyword = name == "default" && !is_name;
                    assert!(!is_keyword, "{at}: {value}");
                    check(inner, &format!("{at}/{name}"));
                }
            }
            Value::Array(items) => items.iter().for_each(|inner| check(inner, at)),
            _ => {}
        }
    }
    check(&document(), "");
}
