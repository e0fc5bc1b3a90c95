//! Every route, in both encodings, and the document that lists them.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    api::{Api, ApiAnswer},
    nulls::with_nulls,
    serve::{Setup, Tidegate},
    wait::eventually,
    wrong_lists::with_lists,
};
use crate::plugins::guest::Guest;

/// A client with one encoding, which records the routes that answered correctly.
struct Tour<'a> {
    api: &'a Api,
    media: &'static str,
    document: &'a Value,
    seen: BTreeSet<String>,
}

impl Tour<'_> {
    /// Asks `route` with its parameters filled in from `names`, in order; a body that is null is
    /// not sent.
    async fn ask(
        &mut self,
        method: Method,
        route: &str,
        names: &[&str],
        body: Value,
        status: u16,
    ) -> Value {
        let mut path = route.to_owned();
        let mut names = names.iter();
        while let Some((before, after)) = path.split_once('{') {
            path = before.to_owned() + names.next().unwrap() + after.split_once('}').unwrap().1;
        }
        path.extend(names.copied());
        for wrong in with_lists(&body) {
            let answer = self.send(&method, &path, &wrong).await;
            let results = answer.value()["results"].as_array().cloned().unwrap_or_default();
            let refused = answer.status == 400
                || results.iter().any(|result| result["error"]["status"] == 400);
            assert!(refused, "{method} {path} with {wrong}: {} {answer:?}", answer.status);
        }
        let operation = &self.document["paths"][route][method.as_str().to_lowercase()];
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        // One tour has only the fields that matter, the other one null in all others. In a patch a
        // field that is null is not one that is absent.
        let body = if self.media.ends_with("json") || method == Method::PATCH {
            body
        } else {
            with_nulls(self.document, schema, &body)
        };
        let answer = self.send(&method, &path, &body).await;
        let value = answer.is(status);
        if status != 204 {
            assert_eq!(answer.header("content-type"), Some(self.media), "{method} {path}");
        }
        assert!(answer.header("x-request-id").is_some());
        self.seen.insert(format!("{} {route}", method.as_str().to_lowercase()));
        value
    }

    /// Sends a body in the client's encoding. A body that is null is not sent.
    async fn send(&self, method: &Method, path: &str, body: &Value) -> ApiAnswer {
        let headers = [("content-type", self.media), ("accept", self.media)];
        let bytes = match body {
            Value::Null => Vec::new(),
            body if self.media.ends_with("json") => body.to_string().into_bytes(),
            body => rmp_serde::to_vec(&body).unwrap(),
        };
        self.api.send(method.clone(), path, &headers, bytes).await
    }

    async fn whole(&mut self) {
        use reqwest::Method as M;
        let (none, tag) = (Value::Null, if self.media.ends_with("json") { "j" } else { "m" });
        let (queue, kind, idle) =
            (&*format!("q-{tag}"), &*format!("t-{tag}"), &*format!("idle-{tag}"));

        for (route, field) in [("/healthz", "status"), ("/readyz", "status")] {
            assert_eq!(self.ask(M::GET, route, &[], none.clone(), 200).await[field], "ok");
        }

        let queues = "/v1/queues/{queue}";
        let made = self.ask(M::PUT, queues, &[queue], json!({"concurrency": 4}), 201).await;
        assert_eq!(made["concurrency"], 4);
        let version =
            self.ask(M::PUT, queues, &[queue], json!({"concurrency": 5}), 200).await["version"]
                .clone();
        assert_eq!(version.as_u64(), Some(made["version"].as_u64().unwrap() + 1));
        assert_eq!(
            self.ask(M::PATCH, queues, &[queue], json!({"order": "priority"}), 200).await["concurrency"],
            5
        );
        assert_eq!(
            self.ask(M::POST, "/v1/queues/{queue}/pause", &[queue], none.clone(), 200).await["paused"],
            true
        );
        assert_eq!(
            self.ask(M::POST, "/v1/queues/{queue}/resume", &[queue], none.clone(), 200).await["paused"],
            false
        );
        assert_eq!(
            self.ask(M::GET, queues, &[queue], none.clone(), 200).await["status"]["running_weight"],
            0
        );
        let listed = self.ask(M::GET, "/v1/queues", &[], none.clone(), 200).await;
        assert!(listed["queues"].as_array().unwrap().iter().any(|listed| listed["name"] == queue));

        let settings = self.ask(M::GET, "/v1/settings", &[], none.clone(), 200).await;
        assert!(settings["settings"].as_array().unwrap().iter().any(|of| of["from"] == "argument"));
        let limits = self.ask(M::GET, "/v1/limits", &[], none.clone(), 200).await;
        assert_eq!((&limits["batch_jobs"], &limits["answer_bytes"]), (&json!(1000), &Value::Null));
        let session = self.ask(M::GET, "/v1/session", &[], none.clone(), 200).await;
        assert_eq!(session["authenticated"], true);
        let overview = self.ask(M::GET, "/v1/overview", &[], none.clone(), 200).await;
        assert!(overview["queues"].as_array().unwrap().iter().any(|of| of["name"] == queue));

        let types = "/v1/job-types/{type}";
        assert_eq!(
            self.ask(M::PUT, types, &[kind], json!({"queue": queue}), 201).await["queue"],
            queue
        );
        assert_eq!(self.ask(M::PUT, types, &[idle], json!({}), 201).await["queue"], "default");
        assert_eq!(
            self.ask(M::PATCH, types, &[kind], json!({"max_attempts": 7}), 200).await["queue"],
            queue
        );
        assert_eq!(self.ask(M::GET, types, &[kind], none.clone(), 200).await["max_attempts"], 7);
        let listed = self.ask(M::GET, "/v1/job-types", &[], none.clone(), 200).await;
        assert!(
            listed["job_types"].as_array().unwrap().iter().any(|listed| listed["name"] == kind)
        );
        self.ask(M::DELETE, types, &[idle], none.clone(), 204).await;

        let job = self
            .ask(
                M::POST,
                "/v1/jobs",
                &[],
                json!({"type": kind, "data": {"n": [1, 2.5, "x", null, true]}}),
                201,
            )
            .await;
        assert_eq!(
            (&job["state"], &job["data"]["n"][1], &job["queue"]),
            (&json!("scheduled"), &json!(2.5), &json!(queue))
        );
        let first = job["id"].as_str().unwrap().to_owned();
        let own = &*format!("own-{tag}");
        let one = "/v1/jobs/{type}/{id}";
        let later = json!({"data": 1, "delay_seconds": 600});
        self.ask(M::PUT, one, &[kind, own], later.clone(), 201).await;
        self.ask(M::PUT, one, &[kind, own], later, 200).await;
        let batch = self
            .ask(
                M::POST,
                "/v1/jobs/batch",
                &[],
                json!({"jobs": [{"type": kind, "data": 1}, {"type": "no", "data": 1}]}),
                200,
            )
            .await;
        assert_eq!(
            (&batch["results"][0]["status"], &batch["results"][1]["status"]),
            (&json!(201), &json!(404))
        );
        let second = batch["results"][0]["job"]["id"].as_str().unwrap().to_owned();
        assert_eq!(self.ask(M::GET, one, &[kind, own], none.clone(), 200).await["id"], own);
        assert_eq!(
            self.ask(M::GET, "/v1/jobs/{id}", &[own], none.clone(), 200).await["type"],
            kind
        );
        assert_eq!(
            self.ask(M::PATCH, one, &[kind, own], json!({"priority": 3}), 200).await["priority"],
            3
        );
        let explained =
            self.ask(M::GET, "/v1/jobs/{type}/{id}/explain", &[kind, own], none.clone(), 200).await;
        assert_eq!(explained["held_by"]["kind"], "due_time");
        let log = "/v1/jobs/{type}/{id}/log";
        let page = self.ask(M::GET, log, &[kind, own], none.clone(), 200).await;
        assert_eq!(page["lines"], json!([]));
        let explained =
            self.ask(M::GET, "/v1/queues/{queue}/explain", &[queue], none.clone(), 200).await;
        assert_eq!(explained["held"][0]["kind"], "worker", "{explained}");
        let what_if = json!({
            "over_seconds": 600, "queue": {"concurrency": 1}, "types": {kind: {"max_attempts": 3}},
            "throttler_version": null, "by": "attribute.tenant", "workers": 2,
        });
        let simulate = "/v1/queues/{queue}/simulate";
        let simulated = self.ask(M::POST, simulate, &[queue], what_if, 200).await;
        assert_eq!((&simulated["jobs"], &simulated["recorded"]), (&json!(3), &Value::Null));
        assert_eq!(simulated["changed"]["series"]["points"][0]["limit"], 1, "{simulated}");
        assert_eq!(
            self.ask(M::DELETE, one, &[kind, own], none.clone(), 200).await["state"],
            "cancelled"
        );
        let replayed =
            self.ask(M::POST, "/v1/jobs/{type}/{id}/replay", &[kind, own], none.clone(), 201).await;
        assert_eq!((&replayed["replay_of"], &replayed["priority"]), (&json!(own), &json!(3)));
        let listed = self.ask(M::GET, "/v1/jobs", &["?type=", kind], none.clone(), 200).await;
        assert_eq!(listed["jobs"].as_array().unwrap().len(), 4);
        let query = ["?sort=-priority&limit=1&type=", kind];
        let sorted = self.ask(M::GET, "/v1/jobs", &query, none.clone(), 200).await;
        assert_eq!(sorted["sorted"], json!({"compared": 4, "complete": true}));
        let of = |job: &Value| job["priority"].as_i64();
        let largest = listed["jobs"].as_array().unwrap().iter().filter_map(of).max();
        assert_eq!((of(&sorted["jobs"][0]), &sorted["jobs"][1]), (largest, &json!(null)));

        let worker = &*format!("w-{tag}");
        assert_eq!(
            self.ask(M::PUT, "/v1/workers/{worker}", &[worker], json!({"capacity": 3}), 200).await
                ["capacity"],
            3
        );
        let asked = json!({"types": [kind], "max": 10, "wait_seconds": 20, "worker": worker});
        let mut leased = Vec::new();
        while leased.len() < 3 {
            let answer = self.ask(M::POST, "/v1/leases", &[], asked.clone(), 200).await;
            leased.extend(answer["leases"].as_array().unwrap().clone());
        }
        assert_eq!(
            self.ask(M::POST, "/v1/workers/{worker}/drain", &[worker], none.clone(), 200).await["draining"],
            true
        );
        assert_eq!(
            self.ask(M::POST, "/v1/workers/{worker}/stop", &[worker], none.clone(), 200).await["stopping"],
            true
        );
        assert_eq!(
            self.ask(M::POST, "/v1/workers/{worker}/undrain", &[worker], none.clone(), 200).await["draining"],
            false
        );
        let listed = self.ask(M::GET, "/v1/workers", &[], none.clone(), 200).await;
        assert!(
            listed["workers"]
                .as_array()
                .unwrap()
                .iter()
                .any(|listed| listed["name"] == worker && listed["running"] == 3),
            "{listed}"
        );
        let history =
            self.ask(M::GET, "/v1/workers/{worker}/history", &[worker], none.clone(), 200).await;
        assert_eq!(history["step_seconds"], 10, "{history}");
        self.ask(M::DELETE, "/v1/workers/{worker}", &[worker], none.clone(), 204).await;
        let beat = json!({"attempt": 1, "progress": 40, "note": "halfway"});
        assert_eq!(
            self.ask(M::POST, "/v1/jobs/{type}/{id}/heartbeat", &[kind, &first], beat, 200).await["cancel"],
            false
        );
        let done = json!({"attempt": 1, "status": "succeeded", "result": {"sum": 3}});
        assert_eq!(self.ask(M::POST, one, &[kind, &first], done, 200).await["state"], "succeeded");
        assert_eq!(
            self.ask(
                M::GET,
                "/v1/jobs/{type}/{id}/result",
                &[kind, &first, "?wait=5"],
                none.clone(),
                200
            )
            .await,
            json!({"sum": 3})
        );
        let failed = json!({"attempt": 1, "status": "failed", "retryable": false, "error": {"code": 7}, "message": "no"});
        let failed = self.ask(M::POST, one, &[kind, &second], failed, 200).await;
        assert_eq!(
            (&failed["state"], &failed["error"]["details"]),
            (&json!("failed"), &json!({"code": 7}))
        );

        assert_eq!(
            self.ask(M::POST, "/v1/jobs/{id}/replay", &[&second], none.clone(), 201).await["replay_of"],
            second
        );
        for (route, filter) in [
            ("/v1/jobs/replay", json!({"filter": {"type": kind, "state": "failed"}})),
            ("/v1/jobs/patch", json!({"filter": {"type": kind}, "patch": {"windows": []}})),
            ("/v1/jobs/cancel", json!({"filter": {"type": kind, "state": ["scheduled"]}})),
        ] {
            let operation = self.ask(M::POST, route, &[], filter, 202).await["operation"].clone();
            self.ask(
                M::GET,
                "/v1/operations/{id}",
                &[operation["id"].as_str().unwrap()],
                none.clone(),
                200,
            )
            .await;
        }
        for (route, name) in
            [("/v1/queues/{queue}/history", queue), ("/v1/job-types/{type}/history", kind)]
        {
            let history = self.ask(M::GET, route, &[name], none.clone(), 200).await;
            assert_eq!(history["step_seconds"], 10, "{history}");
        }
        let errors = self.ask(M::GET, "/v1/errors", &[], none.clone(), 200).await;
        assert_eq!(
            (&errors["errors"][0]["pattern"], &errors["errors"][0]["reason"]),
            (&json!("no"), &json!("failed"))
        );
        self.ask(M::POST, "/v1/queues/{queue}/purge", &[queue], none.clone(), 202).await;
        let spare = &*format!("spare-{tag}");
        self.ask(M::PUT, queues, &[spare], json!({}), 201).await;
        self.ask(M::DELETE, queues, &[spare], none.clone(), 204).await;
    }

    /// The routes of schedules.
    async fn schedules(&mut self) {
        use reqwest::Method as M;
        let (none, name) =
            (Value::Null, if self.media.ends_with("json") { "leap-j" } else { "leap-m" });
        let (kind, one) = (&*format!("of-{name}"), "/v1/schedules/{schedule}");
        self.ask(M::PUT, "/v1/job-types/{type}", &[kind], json!({}), 201).await;
        let leap = json!({"type": kind, "cron": "0 0 29 2 *", "tz": "Europe/Berlin", "data": {"n": [1, 2.5, null]}});
        assert_eq!(
            self.ask(M::PUT, one, &[name], leap, 201).await["next"].as_array().unwrap().len(),
            10
        );
        let patched = self.ask(M::PATCH, one, &[name], json!({"priority": 7}), 200).await;
        assert_eq!((&patched["priority"], &patched["data"]["n"][1]), (&json!(7), &json!(2.5)));
        assert_eq!(self.ask(M::GET, one, &[name], none.clone(), 200).await["version"], 2);
        let listed = self.ask(M::GET, "/v1/schedules", &[], none.clone(), 200).await;
        assert!(
            listed["schedules"]
                .as_array()
                .unwrap()
                .iter()
                .any(|listed| listed["name"] == name && listed["data"]["n"][0] == 1)
        );
        assert_eq!(
            self.ask(M::POST, "/v1/schedules/{schedule}/pause", &[name], none.clone(), 200).await["paused"],
            true
        );
        assert_eq!(
            self.ask(M::POST, "/v1/schedules/{schedule}/resume", &[name], none.clone(), 200).await
                ["paused"],
            false
        );
        let job =
            self.ask(M::POST, "/v1/schedules/{schedule}/run", &[name], none.clone(), 201).await;
        assert_eq!((&job["priority"], &job["data"]["n"][1]), (&json!(7), &json!(2.5)));
        self.ask(M::DELETE, one, &[name], none, 204).await;
    }

    /// The routes of plugins: what goes in and out of some is a component.
    async fn plugins(&mut self) {
        use reqwest::Method as M;
        let (none, name) =
            (Value::Null, if self.media.ends_with("json") { "share-j" } else { "share-m" });
        let one = "/v1/plugins/{plugin}";
        for (status, number, mark) in [(201, 1, 1u8), (201, 2, 2), (200, 1, 1)] {
            let wasm = [Guest::throttler().component(), vec![0, 3, 1, b'm', mark]].concat();
            let headers = [("content-type", "application/wasm"), ("accept", self.media)];
            let pushed = self
                .api
                .send(M::PUT, &one.replace("{plugin}", name), &headers, wasm)
                .await
                .is(status);
            assert_eq!((&pushed["pushed"], &pushed["name"]), (&json!(number), &json!(name)));
        }
        self.seen.insert("put /v1/plugins/{plugin}".into());
        assert_eq!(
            self.ask(M::GET, one, &[name], none.clone(), 200).await["throttler"]["about"],
            "A guest of the tests."
        );
        let listed = self.ask(M::GET, "/v1/plugins", &[], none.clone(), 200).await;
        assert!(listed["plugins"].as_array().unwrap().iter().any(|listed| listed["name"] == name));
        let versions =
            self.ask(M::GET, "/v1/plugins/{plugin}/versions", &[name], none.clone(), 200).await;
        assert_eq!(versions["versions"].as_array().unwrap().len(), 2);
        let rolled = self
            .ask(M::POST, "/v1/plugins/{plugin}/rollback", &[name], json!({"version": 1}), 200)
            .await;
        assert_eq!(rolled["live"], 1);
        assert_eq!(
            self.ask(M::PUT, "/v1/plugins/{plugin}/shadow", &[name], json!({"version": 2}), 200)
                .await["shadow"],
            2
        );
        assert_eq!(
            self.ask(M::DELETE, "/v1/plugins/{plugin}/shadow", &[name], none.clone(), 200).await["shadow"],
            none
        );
        for (route, list) in
            [("differences", "differences"), ("logs", "logs"), ("faults", "faults")]
        {
            let shown = self
                .ask(M::GET, &format!("/v1/plugins/{{plugin}}/{route}"), &[name], none.clone(), 200)
                .await;
            assert_eq!(shown[list], json!([]));
        }
        let component = "/v1/plugins/{plugin}/versions/{number}/component";
        let path = component.replace("{plugin}", name).replace("{number}", "1");
        let back = self.api.send(M::GET, &path, &[("accept", self.media)], "").await;
        assert_eq!((back.status, back.header("content-type")), (200, Some("application/wasm")));
        self.seen.insert(format!("get {component}"));
        let recording = "/v1/plugins/{plugin}/recording";
        let filter = json!({"filter": {"action": "hold", "attributes": {"region": "east"}}});
        let shown = self.ask(M::PUT, recording, &[name], filter, 200).await;
        assert_eq!(shown["recording"]["filter"]["attributes"]["region"], "east");
        let shown = self.ask(M::DELETE, recording, &[name], none.clone(), 200).await;
        assert_eq!(shown["recording"], none);
        let pruned =
            self.ask(M::POST, "/v1/plugins/{plugin}/prune", &[name], json!({"keep": 1}), 200).await;
        assert_eq!(pruned, json!({"removed": [], "kept": [1, 2]}));
        self.plugin_calls(name).await;
        self.ask(M::DELETE, one, &[name], none, 204).await;
    }

    /// The routes of recorded calls, after a call of the plugin.
    async fn plugin_calls(&mut self, name: &str) {
        use reqwest::Method as M;
        let (none, queue, kind) = (Value::Null, format!("of-{name}"), format!("type-{name}"));
        let queues = "/v1/queues/{queue}";
        let throttler = json!({"throttler": {"plugin": name}});
        self.ask(M::PUT, queues, &[&queue], throttler, 201).await;
        let of_queue = json!({ "queue": queue });
        self.ask(M::PUT, "/v1/job-types/{type}", &[&kind], of_queue, 201).await;
        self.ask(M::POST, "/v1/jobs", &[], json!({"type": kind, "data": 1}), 201).await;
        let lease = json!({"types": [kind], "wait_seconds": 10});
        let leased = self.ask(M::POST, "/v1/leases", &[], lease, 200).await;
        assert_eq!(leased["leases"].as_array().map(Vec::len), Some(1), "{leased}");
        let calls =
            self.ask(M::GET, "/v1/plugins/{plugin}/calls", &[name], none.clone(), 200).await;
        let id = calls["calls"][0]["id"].as_str().unwrap();
        let one = "/v1/plugins/{plugin}/calls/{id}";
        let call = self.ask(M::GET, one, &[name, id], none, 200).await;
        assert_eq!((&call["queue"], &call["decided"]["run"]), (&json!(queue), &json!(1)), "{call}");
        assert_eq!(call["call"]["throttle"]["context"]["queue"], json!(queue));
        let no_throttler = json!({ "throttler": null });
        self.ask(M::PATCH, queues, &[&queue], no_throttler, 200).await;
    }

    /// The routes of events, and of triggers.
    async fn events(&mut self) {
        use reqwest::Method as M;
        let (none, tag) = (Value::Null, if self.media.ends_with("json") { "j" } else { "m" });
        let (name, kind) = (&*format!("on-{tag}"), &*format!("et-{tag}"));
        self.ask(M::PUT, "/v1/job-types/{type}", &[kind], json!({}), 201).await;
        let one = "/v1/triggers/{trigger}";
        let rule = |priority: &str| json!({"filter": {"type": tag}, "enqueue": {"type": kind, "priority": {"$expr": priority}}});
        assert_eq!(self.ask(M::PUT, one, &[name], rule("data"), 201).await["version"], 1);
        assert_eq!(
            self.ask(M::GET, one, &[name], none.clone(), 200).await["filter"],
            json!({"type": tag})
        );
        let listed = self.ask(M::GET, "/v1/triggers", &[], none.clone(), 200).await;
        assert!(listed["triggers"].as_array().unwrap().iter().any(|listed| listed["name"] == name));
        let mut letters = Vec::new();
        for id in ["1", "2", "3"] {
            let event = json!({"specversion": "1.0", "id": id, "source": "/tour", "type": tag, "data": "not a number"});
            let (media, bytes) = match self.media {
                "application/json" => {
                    ("application/cloudevents+json", event.to_string().into_bytes())
                }
                _ => ("application/cloudevents+msgpack", rmp_serde::to_vec(&event).unwrap()),
            };
            let answer = self
                .api
                .send(
                    M::POST,
                    "/v1/events",
                    &[("content-type", media), ("accept", self.media)],
                    bytes,
                )
                .await
                .is(200);
            assert_eq!(answer["outcomes"][0]["action"], "dead_lettered", "{answer}");
            letters.push(answer["outcomes"][0]["letter"].as_str().unwrap().to_owned());
        }
        self.seen.insert("post /v1/events".into());
        let event =
            json!({"specversion": "1.0", "id": "4", "source": "/tour", "type": tag, "data": "x"});
        let (media, bytes) = match self.media {
            "application/json" => ("application/cloudevents+json", event.to_string().into_bytes()),
            _ => ("application/cloudevents+msgpack", rmp_serde::to_vec(&event).unwrap()),
        };
        let path = format!("/v1/triggers/{name}/test");
        let headers = [("content-type", media), ("accept", self.media)];
        let would = self.api.send(M::POST, &path, &headers, bytes).await.is(200);
        assert_eq!(would["action"], "dead_lettered", "{would}");
        self.seen.insert("post /v1/triggers/{trigger}/test".into());
        let listed =
            self.ask(M::GET, "/v1/dead-letters", &["?trigger=", name], none.clone(), 200).await;
        assert_eq!(listed["dead_letters"].as_array().unwrap().len(), 3);
        let letter = "/v1/dead-letters/{id}";
        assert_eq!(
            self.ask(M::GET, letter, &[&letters[0]], none.clone(), 200).await["event"]["data"],
            "not a number"
        );
        self.ask(M::DELETE, letter, &[&letters[0]], none.clone(), 204).await;
        self.ask(M::PUT, one, &[name], rule("length(data)"), 200).await;
        let replayed = self
            .ask(M::POST, "/v1/dead-letters/{id}/replay", &[&letters[1]], none.clone(), 200)
            .await;
        assert_eq!(replayed["action"], "enqueued");
        let replayed =
            self.ask(M::POST, "/v1/dead-letters/replay", &[], json!({"trigger": name}), 200).await;
        assert_eq!(replayed, json!({"replayed": 1, "remaining": 0}));
        self.ask(M::DELETE, one, &[name], none, 204).await;
    }

    /// The routes of the clock.
    async fn clock(&mut self) {
        let route = "/v1/dev/clock";
        let body = json!({"advance_seconds": 0.5});
        assert_eq!(self.ask(Method::POST, route, &[], body, 200).await["frozen"], false);
        let clock = self.ask(Method::GET, route, &[], Value::Null, 200).await;
        assert!(clock["now"].is_string(), "{clock}");
    }

    /// The routes of tokens, which close the server to requests without one.
    async fn tokens(&mut self) {
        let minted = self
            .ask(Method::POST, "/v1/tokens", &[], json!({"name": "ops", "scopes": ["admin"]}), 201)
            .await;
        let (id, token) = (minted["id"].as_str().unwrap(), minted["token"].as_str().unwrap());
        let admin = self.api.with_token(token);
        let mut known =
            Tour { api: &admin, media: self.media, document: self.document, seen: BTreeSet::new() };
        let listed = known.ask(Method::GET, "/v1/tokens", &[], Value::Null, 200).await;
        assert!(
            listed["tokens"][0].get("token").is_none() && listed["tokens"][0]["name"] == "ops",
            "{listed}"
        );
        let audit = known.ask(Method::GET, "/v1/audit", &[], Value::Null, 200).await;
        let last = &audit["entries"][0];
        assert_eq!(
            (&last["action"], &last["caller"]),
            (&json!("create_token"), &json!("anonymous"))
        );
        let checked = known.ask(Method::GET, "/v1/doctor", &[], Value::Null, 200).await;
        assert!(checked["checks"].as_array().is_some_and(|checks| !checks.is_empty()), "{checked}");
        known.ask(Method::DELETE, "/v1/tokens/{id}", &[id, "?force=true"], Value::Null, 204).await;
        self.seen.append(&mut known.seen);
    }
}

#[tokio::test]
async fn every_route_speaks_both_encodings_and_is_in_the_document() {
    let tide = Tidegate::start().await;
    let document = tide.get("/openapi.json").await.is(200);
    assert_eq!(document["openapi"], "3.1.0");
    let routes: BTreeSet<String> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, operations)| {
            operations.as_object().unwrap().keys().map(move |method| format!("{method} {path}"))
        })
        .filter(|route| {
            !["get /metrics", "get /openapi.json", "get /v1/stream"].contains(&route.as_str())
        })
        .collect();
    assert!(
        document["webhooks"]["delivery"].is_object() && document["webhooks"]["ended"].is_object()
    );
    for media in ["application/json", "application/msgpack"] {
        // Each tour ends with a server that is closed for good. The clock of this one can be moved.
        let tide = Setup::dev().start().await;
        let mut tour = Tour { api: &tide, media, document: &document, seen: BTreeSet::new() };
        tour.whole().await;
        tour.events().await;
        tour.plugins().await;
        tour.schedules().await;
        tour.clock().await;
        tour.tokens().await;
        assert_eq!(
            tour.seen, routes,
            "{media}: the routes of the document and the requested ones differ"
        );
    }
}

/// Checks text for Prometheus as `promtool check metrics` does: each family has a help text and a
/// type before its samples, and a name that ends with its unit or kind.
fn check_metrics(text: &str) {
    let mut known = BTreeMap::new();
    let mut helped = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect("a help text");
            assert!(!words.trim().is_empty() && helped.insert(name.to_owned()), "{line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(helped.contains(name), "{name} has no help text");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(kind != "histogram" || name.ends_with("_seconds"), "{line}");
            assert!(!name.contains("_ms") && !name.contains("_milliseconds"), "{line}");
            known.insert(name.to_owned(), kind.to_owned());
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|part| name.strip_suffix(part).filter(|name| known.contains_key(*name)));
            assert!(known.contains_key(family.unwrap_or(name)), "{line} has no type");
        }
    }
    assert!(known.len() > 5, "{text}");
}

#[tokio::test]
async fn refused_requests_are_counted_by_reason() {
    let tide = Tidegate::start().await;
    let admin = tide.post("/v1/tokens", json!({"name": "ops", "scopes": ["admin"]})).await.is(201);
    let admin = tide.with_token(admin["token"].as_str().unwrap());
    let reader =
        admin.post("/v1/tokens", json!({"name": "reader", "scopes": ["read"]})).await.is(201);
    let reader = tide.with_token(reader["token"].as_str().unwrap());
    tide.get("/v1/jobs").await.problem(401, "unauthorized");
    tide.with_token("tg_none").get("/v1/jobs").await.problem(401, "unauthorized");
    reader.get("/v1/tokens").await.problem(403, "forbidden");
    let site = [("sec-fetch-site", "cross-site")];
    reader.send(Method::POST, "/v1/jobs", &site, "").await.problem(403, "cross_site");
    let metrics = String::from_utf8(reader.get("/metrics").await.body).unwrap();
    for reason in ["no_credentials", "invalid_credentials", "scope", "cross_site"] {
        let line = format!("tidegate_requests_refused_total{{reason=\"{reason}\"}} 1");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
}

#[tokio::test]
async fn metrics_are_text_for_prometheus() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    tide.enqueue_a("t").await;
    let text = eventually("the gauges are recorded", || async {
        let metrics = tide.get("/metrics").await;
        assert_eq!(metrics.status, 200);
        let text = String::from_utf8(metrics.body).unwrap();
        ["tidegate_connections ", "tidegate_jobs{"]
            .iter()
            .all(|name| text.contains(name))
            .then_some(text)
    })
    .await;
    for name in
        ["tidegate_http_requests_total", "tidegate_enqueued_total{queue=\"default\",type=\"t\"} 1"]
    {
        assert!(text.contains(name), "{name} in {text}");
    }
    check_metrics(&text);
}

#[tokio::test]
async fn an_unknown_route_is_answered_with_a_problem() {
    let tide = Tidegate::start().await;
    tide.get("/v2/jobs").await.problem(404, "route_not_found");
    let wrong = tide.post("/healthz", json!({})).await;
    wrong.problem(405, "method_not_allowed");
    assert_eq!(wrong.header("allow").map(|allow| allow.contains("GET")), Some(true));
    tide.send(Method::POST, "/v1/jobs", &[("content-type", "text/csv")], "a,b")
        .await
        .problem(415, "unsupported_media_type");
    tide.send(Method::GET, "/v1/jobs", &[("accept", "text/csv")], "")
        .await
        .problem(406, "not_acceptable");
    tide.send(Method::POST, "/v1/jobs", &[("sec-fetch-site", "cross-site")], "{}")
        .await
        .problem(403, "cross_site");
    let packed =
        tide.send(Method::GET, "/v1/jobs/none", &[("accept", "application/msgpack")], "").await;
    packed.problem(404, "job_not_found");
    assert_eq!(packed.header("content-type"), Some("application/problem+msgpack"));
    let own = tide.send(Method::GET, "/healthz", &[("x-request-id", "mine-7")], "").await;
    assert_eq!(own.header("x-request-id"), Some("mine-7"));
}
