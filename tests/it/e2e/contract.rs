//! Whether every response, and every request that is accepted, is what `/openapi.json` says: the
//! client of these tests checks each.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Map, Value};

use super::api::ApiAnswer;

/// Media types of problem documents and of data, with what reads them.
const MSGPACK: &str = "msgpack";
/// Keywords that restrict nothing.
const NOTES: [&str; 5] = ["description", "examples", "title", "format", "writeOnly"];

/// A request and its response.
pub struct Exchange<'a> {
    pub method: &'a Method,
    pub path: &'a str,
    /// The media type of the request.
    pub media: &'a str,
    /// The body of the request.
    pub body: &'a [u8],
    pub answer: &'a ApiAnswer,
}

/// The document of a server.
pub struct Contract {
    document: Value,
}

impl Contract {
    pub fn new(document: Value) -> Self {
        Self { document }
    }

    /// Panics if the document says something else.
    pub fn check(&self, exchange: &Exchange<'_>) {
        let Exchange { method, path, answer, .. } = exchange;
        let faults = self.faults(exchange);
        assert!(
            faults.is_empty(),
            "{method} {path}: {} contradicts the document: {faults:#?}\n{}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        );
    }

    fn faults(&self, exchange: &Exchange<'_>) -> Vec<String> {
        let Exchange { method, path, answer, .. } = exchange;
        if answer.body.is_empty() && **method == Method::HEAD {
            return Vec::new();
        }
        let Some(operation) = self.operation(method, path) else {
            // The console, and routes that there are not.
            let files = ["/", "/console.js", "/console.css"];
            let known = answer.status >= 400
                || path.split('?').next().is_some_and(|path| files.contains(&path));
            return if known { Vec::new() } else { vec!["it is not documented".to_owned()] };
        };
        let mut faults = Vec::new();
        if (200..300).contains(&answer.status) {
            self.request_faults(exchange, &operation["requestBody"], &mut faults);
        }
        let responses = &operation["responses"];
        let Some(response) = responses.get(answer.status.to_string()) else {
            faults.push(format!("the status {} is not documented", answer.status));
            return faults;
        };
        if answer.body.is_empty() {
            return faults;
        }
        let media = answer.header("content-type").unwrap_or_default();
        match content(&response["content"], media) {
            None => faults.push(format!("{media:?} of {} is not documented", answer.status)),
            Some(schema) => {
                if let Some(value) = read(media, &answer.body) {
                    self.differs(schema, &value, "the response", &mut faults);
                }
            }
        }
        faults
    }

    /// Collects where the body of an accepted request differs from `documented`. A refused one may
    /// be anything.
    fn request_faults(
        &self,
        exchange: &Exchange<'_>,
        documented: &Value,
        faults: &mut Vec<String>,
    ) {
        let Exchange { method, media, body, answer, .. } = exchange;
        if **method == Method::GET {
            // A body of it has no meaning.
            return;
        }
        if body.is_empty() {
            if documented["required"] == true {
                faults.push("it was accepted without its required body".to_owned());
            }
            return;
        }
        match content(&documented["content"], media) {
            None => faults.push(format!("a request of {media:?} was accepted, undocumented")),
            Some(schema) => {
                if let Some(mut value) = read(media, body) {
                    remove_refused(&mut value, answer);
                    self.differs(schema, &value, "the accepted request", faults);
                }
            }
        }
    }

    /// The operation of a request. A word of a route wins over a parameter.
    fn operation(&self, method: &Method, path: &str) -> Option<&Value> {
        let path = path.split('?').next().unwrap_or_default();
        let fitting = |route: &str| {
            let (parts, words) = (path.split('/'), route.split('/'));
            if parts.clone().count() != words.clone().count() {
                return None;
            }
            let fits = |(part, word): (&str, &str)| word.starts_with('{') || part == word;
            let literal = words.clone().filter(|word| !word.starts_with('{')).count();
            parts.zip(words).all(fits).then_some(literal)
        };
        let paths = self.document["paths"].as_object()?;
        let routes = paths.iter().filter_map(|(route, item)| Some((fitting(route)?, item)));
        let (_, item) = routes.max_by_key(|(literal, _)| *literal)?;
        item.get(method.as_str().to_lowercase())
    }

    /// Collects where `value` differs from `schema`.
    fn differs(&self, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
        let Some(keywords) = schema.as_object() else {
            faults.push(format!("{at} has no schema: {schema}"));
            return;
        };
        for (keyword, rule) in keywords {
            let fits = match keyword.as_str() {
                keyword if NOTES.contains(&keyword) => true,
                "$ref" => {
                    let place = rule.as_str().unwrap().trim_start_matches('#');
                    let schema = self.document.pointer(place).unwrap();
                    self.differs(schema, value, at, faults);
                    true
                }
                "anyOf" => {
                    let tried = rule.as_array().unwrap().iter().map(|choice| {
                        let mut faults = Vec::new();
                        self.differs(choice, value, at, &mut faults);
                        faults
                    });
                    let tried: Vec<_> = tried.collect();
                    if !tried.iter().any(Vec::is_empty) {
                        faults.extend(tried.concat());
                    }
                    true
                }
                "type" => {
                    let kinds = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                    let own = kinds_of(value);
                    kinds.iter().any(|kind| own.contains(&kind.as_str().unwrap()))
                }
                "enum" => rule.as_array().unwrap().contains(value),
                "minimum" => number(value).is_none_or(|n| n >= rule.as_f64().unwrap()),
                "maximum" => number(value).is_none_or(|n| n <= rule.as_f64().unwrap()),
                "minLength" => length(value).is_none_or(|n| n >= rule.as_u64().unwrap()),
                "maxLength" => length(value).is_none_or(|n| n <= rule.as_u64().unwrap()),
                "minItems" => items(value).is_none_or(|n| n >= rule.as_u64().unwrap()),
                "maxItems" => items(value).is_none_or(|n| n <= rule.as_u64().unwrap()),
                "pattern" => value.as_str().is_none_or(|text| has_form(text, rule)),
                "items" => {
                    for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.differs(rule, item, &format!("{at}[{n}]"), faults);
                    }
                    true
                }
                "required" => {
                    let names = rule.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
                    value
                        .as_object()
                        .is_none_or(|fields| names.clone().all(|name| fields.contains_key(name)))
                }
                "properties" => {
                    for (name, field) in value.as_object().into_iter().flatten() {
                        if let Some(schema) = rule.get(name) {
                            self.differs(schema, field, &format!("{at}.{name}"), faults);
                        }
                    }
                    true
                }
                "additionalProperties" => {
                    let known = keywords.get("properties").and_then(Value::as_object);
                    let others = others(value, known);
                    if *rule == Value::Bool(false) {
                        others.is_empty()
                    } else {
                        for (name, field) in others {
                            self.differs(rule, field, &format!("{at}.{name}"), faults);
                        }
                        true
                    }
                }
                other => panic!("this client does not know the keyword {other} of {schema}"),
            };
            if !fits {
                faults.push(format!("{at}: {value} has not {keyword} {rule}"));
            }
        }
        // A property without documentation is a fault, although clients may ignore it.
        if let Some(known) = keywords.get("properties").and_then(Value::as_object)
            && !keywords.contains_key("additionalProperties")
            && keywords.contains_key("required")
            && !known.contains_key("specversion")
        {
            let unknown: Vec<&String> = others(value, Some(known)).into_keys().collect();
            if !unknown.is_empty() {
                faults.push(format!("{at} has undocumented {unknown:?}"));
            }
        }
    }
}

/// Removes the items of a request whose results are refusals: they may be anything.
fn remove_refused(request: &mut Value, answer: &ApiAnswer) {
    let media = answer.header("content-type").unwrap_or_default();
    let Some(Value::Object(answer)) = read(media, &answer.body) else { return };
    let Some(Value::Array(results)) = answer.get("results") else { return };
    let items = match request {
        Value::Array(items) => Some(items),
        Value::Object(fields) => fields.values_mut().find_map(Value::as_array_mut),
        _ => None,
    };
    if let Some(items) = items.filter(|items| items.len() == results.len()) {
        let mut results = results.iter();
        items.retain(|_| {
            results.next().is_some_and(|result| result["status"].as_u64().unwrap_or(200) < 400)
        });
    }
}

/// The fields of `value` that are not `known`.
fn others<'a>(
    value: &'a Value,
    known: Option<&Map<String, Value>>,
) -> BTreeMap<&'a String, &'a Value> {
    let fields = value.as_object().into_iter().flatten();
    fields.filter(|(name, _)| known.is_none_or(|known| !known.contains_key(*name))).collect()
}

/// The schema of the content with this media type.
fn content<'a>(content: &'a Value, media: &str) -> Option<&'a Value> {
    let essence = media.split(';').next().unwrap_or_default().trim();
    let found = content.get(essence).or_else(|| content.get("*/*"))?;
    Some(&found["schema"])
}

/// A body as a value; none if it is neither JSON nor MessagePack, or has no JSON form.
fn read(media: &str, body: &[u8]) -> Option<Value> {
    if media.contains(MSGPACK) {
        rmp_serde::from_slice(body).ok()
    } else if media.contains("json") {
        serde_json::from_slice(body).ok()
    } else {
        None
    }
}

/// The types of a value, as JSON Schema names them.
fn kinds_of(value: &Value) -> &'static [&'static str] {
    match value {
        Value::Null => &["null"],
        Value::Bool(_) => &["boolean"],
        Value::Number(number) if number.as_f64().is_some_and(|n| n.fract() != 0.0) => &["number"],
        Value::Number(_) => &["integer", "number"],
        Value::String(_) => &["string"],
        Value::Array(_) => &["array"],
        Value::Object(_) => &["object"],
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64()
}

fn length(value: &Value) -> Option<u64> {
    value.as_str().map(|text| text.chars().count() as u64)
}

fn items(value: &Value) -> Option<u64> {
    value.as_array().map(|items| items.len() as u64)
}

/// Whether `text` has one of the forms that the document uses.
fn has_form(text: &str, pattern: &Value) -> bool {
    let of = |marks: &str| {
        !text.is_empty()
            && text.chars().all(|letter| letter.is_ascii_alphanumeric() || marks.contains(letter))
    };
    match pattern.as_str().unwrap() {
        "^[A-Za-z0-9_.-]+$" => of("_.-"),
        "^[A-Za-z0-9_.:-]+$" => of("_.:-"),
        "^[0-9]{2}:[0-9]{2}(:[0-9]{2})?$" => {
            let parts: Vec<&str> = text.split(':').collect();
            (2..=3).contains(&parts.len())
                && parts.iter().all(|part| part.len() == 2 && part.parse::<u8>().is_ok())
        }
        other => panic!("this client does not know the pattern {other}"),
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_contradiction_of_the_document_is_found() {
        let schema = json!({
            "type": "object", "required": ["a"], "properties": {
                "a": {"type": "integer", "minimum": 1, "maximum": 9},
                "b": {"anyOf": [{"$ref": "#/words"}, {"type": "null"}]},
                "c": {"type": "array", "maxItems": 1, "items": {"enum": ["x"]}},
            },
        });
        let contract = Contract::new(json!({"words": {"type": "string", "maxLength": 2}}));
        let faults = |value: Value| {
            let mut faults = Vec::new();
            contract.differs(&schema, &value, "", &mut faults);
            faults.len()
        };
        assert_eq!(faults(json!({"a": 1, "b": null, "c": ["x"]})), 0);
        assert_eq!(faults(json!({"a": 9, "b": "xy"})), 0);
        for wrong in [
            json!({}),
            json!([]),
            json!({"a": 0}),
            json!({"a": 10}),
            json!({"a": 1.5}),
            json!({"a": 1, "c": ["y"]}),
            json!({"a": 1, "c": ["x", "x"]}),
            json!({"a": 1, "d": 1}),
        ] {
            assert_eq!(faults(wrong.clone()), 1, "{wrong}");
        }
        assert!(faults(json!({"a": 1, "b": "xyz"})) > 0);
    }

    #[test]
    fn a_refused_item_of_a_batch_may_be_anything() {
        let text = json!({"results": [{"status": 201}, {"status": 400}, {}]}).to_string();
        let headers = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        let headers = headers.into_iter().collect();
        let answer = ApiAnswer { status: 200, headers, body: text.into_bytes() };
        let mut request = json!({"atomic": false, "jobs": [{"type": "t"}, 7, {"type": 1}]});
        remove_refused(&mut request, &answer);
        assert_eq!(request["jobs"], json!([{"type": "t"}, {"type": 1}]));
        let mut request = json!([1, 2, 3]);
        remove_refused(&mut request, &answer);
        assert_eq!(request, json!([1, 3]));
    }

    #[test]
    fn an_accepted_request_that_contradicts_the_document_is_found() {
        let schema = json!({
            "type": "object", "additionalProperties": false,
            "properties": {"a": {"type": "integer"}},
        });
        let body = json!({"required": true, "content": {"application/json": {"schema": schema}}});
        let document = json!({"paths": {"/v1/a/{b}": {
            "put": {"requestBody": body, "responses": {"204": {}, "400": {}}},
            "post": {"responses": {"204": {}}},
            "get": {"responses": {"204": {}}},
        }}});
        let contract = Contract::new(document);
        let faults = |method: Method, media: &str, body: &str, status: u16| {
            let answer = ApiAnswer { status, headers: HeaderMap::new(), body: Vec::new() };
            let (path, body, method) = ("/v1/a/x?y=1", body.as_bytes(), &method);
            contract.faults(&Exchange { method, path, media, body, answer: &answer }).len()
        };
        let json = "application/json; charset=utf-8";
        assert_eq!(faults(Method::PUT, json, r#"{"a": 1}"#, 204), 0);
        assert_eq!(faults(Method::PUT, json, r#"{"a": "x"}"#, 204), 1);
        assert_eq!(faults(Method::PUT, json, r#"{"b": 1}"#, 204), 1);
        assert_eq!(faults(Method::PUT, json, r#"{"b": 1}"#, 400), 0, "it was refused");
        assert_eq!(faults(Method::PUT, json, "", 204), 1);
        assert_eq!(faults(Method::PUT, "text/plain", "a", 204), 1);
        assert_eq!(faults(Method::GET, json, "null", 204), 0);
        assert_eq!(faults(Method::POST, "", "", 204), 0);
        assert_eq!(faults(Method::POST, json, "{}", 204), 1);
    }
}
