//! Six policies in three languages: the models of the gallery that have a `plugin.js` and a
//! `plugin.py` next to their Rust source.
//!
//! Each of them governs queues of a live server, whose jobs start as the scenes in
//! `tests/it/e2e/policies` require. Its recorded calls are repeated without a difference. A policy in
//! JavaScript or Python also passes the cases of the model, decides in the simulation of the model
//! as the Rust component does, and its recorded calls get the same answers from that component. The
//! tests of the gallery run the cases and the simulations of the Rust components.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use rstest::rstest;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::{
    api::Lease,
    projects::{done, tidegate},
    serve::{Tidegate, program, text},
    wait::until,
};

/// A queue that a policy governs, and its jobs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scene {
    about: String,
    /// The configuration of the queue.
    queue: Value,
    /// Configurations of job types.
    types: BTreeMap<String, Value>,
    steps: Vec<Step>,
}

/// What happens next, or what is required of the queue.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Step {
    /// These jobs are enqueued.
    Enqueue(Vec<Map<String, Value>>),
    /// These jobs start, in this order, each for a worker that requests one job.
    Start(Vec<String>),
    /// The throttler holds these jobs, each with a reason that contains this text, and no other starts.
    Hold(BTreeMap<String, String>),
    /// The running attempts of these jobs end with these reports.
    Report(BTreeMap<String, Map<String, Value>>),
    /// These jobs get these properties.
    Become(BTreeMap<String, Value>),
}

/// A policy, by the name of its model.
struct Policy {
    name: String,
    scenes: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

impl Policy {
    /// The policy with the scenes in `file`.
    fn of(file: &Path) -> Self {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        Self { name, scenes: fs::read_to_string(file).unwrap() }
    }

    fn model(&self) -> PathBuf {
        root().join("plugins/gallery").join(&self.name)
    }

    /// The shipped component, built from Rust.
    fn rust(&self) -> PathBuf {
        root().join("plugins/dist").join(format!("{}.wasm", self.name))
    }

    /// Whether the model throttles a queue. Otherwise it is a retry strategy.
    fn is_throttler(&self) -> bool {
        let scenario = fs::read(self.model().join("scenario.json")).unwrap();
        let scenario: Value = serde_json::from_slice(&scenario).unwrap();
        !scenario["queue"]["throttler"].is_null()
    }

    /// Builds the policy of another language in `dir`, as a project with the model's source.
    fn build(&self, lang: &str, source: &str, dir: &Path) -> PathBuf {
        let role = if self.is_throttler() { "throttler" } else { "retry" };
        done(tidegate(dir, &["new", "--lang", lang, "--role", role, &self.name]));
        let project = dir.join(&self.name);
        fs::copy(self.model().join(source), project.join(source)).unwrap();
        done(tidegate(&project, &["build"]));
        project.join(format!("{}.wasm", self.name))
    }

    /// Pushes the component to a server, plays the scenes, and repeats the recorded calls. Returns a
    /// folder with them.
    async fn governs(&self, component: &Path) -> TempDir {
        let (tide, name) = (Tidegate::start().await, self.name.as_str());
        tide.cli(&["plugin", "push", name, text(component)]).await.ok();
        tide.cli(&["plugin", "record", name, "--filter", "all"]).await.ok();
        let scenes = self.scenes.replace("{noon}", &zone_at_noon(&tide).await);
        let scenes: Vec<Scene> = serde_json::from_str(&scenes).unwrap();
        for (number, scene) in (1..).zip(&scenes) {
            scene.play(&tide, name, &format!("{name}-{number}")).await;
        }
        let plugin = tide.get(&format!("/v1/plugins/{name}")).await.is(200);
        assert_eq!(plugin["health"]["faults"], 0, "{plugin:#}");

        let saved = tempfile::tempdir().unwrap();
        tide.cli(&["plugin", "record", name, "--save", text(saved.path())]).await.ok();
        is_the_same(&tide.cli(&["plugin", "replay", name]).await.ok());
        let of_file = ["plugin", "replay", text(component), text(saved.path())];
        is_the_same(&tide.cli(&of_file).await.ok());
        saved
    }
}

/// A zone in which it is noon, so that no day ends during the test.
async fn zone_at_noon(tide: &Tidegate) -> String {
    tide.job_type("clock", json!({})).await;
    let job = tide.job(&tide.enqueue_a("clock").await).await;
    let created_at = job["created_at"].as_str().unwrap();
    let hour: i32 = created_at[11..13].parse().unwrap();
    // These names have the sign of POSIX: Etc/GMT+7 is seven hours behind UTC.
    format!("Etc/GMT{:+}", hour - 12)
}

/// Requires that calls were repeated, and that all had the same answers.
#[track_caller]
fn is_the_same(output: &str) {
    let total = output.lines().last().unwrap_or_default();
    let is_same = total.ends_with(" same, 0 different, 0 failed, 0 repaired, 0 incomplete");
    assert!(is_same && !total.starts_with("0 calls"), "{output}");
}

/// Whether `value` has everything that `expected` has.
fn fits(value: &Value, expected: &Value) -> bool {
    match expected {
        Value::Object(fields) => fields.iter().all(|(name, field)| fits(&value[name], field)),
        _ => value == expected,
    }
}

impl Scene {
    /// Configures `queue` with the plugin, and takes all steps.
    async fn play(&self, tide: &Tidegate, plugin: &str, queue: &str) {
        tide.queue(queue, self.queue.clone()).await;
        for (name, config) in &self.types {
            let mut config = config.clone();
            // No lease ends during the test, however slow the machine is.
            (config["queue"], config["lease_seconds"]) = (json!(queue), json!(3600));
            tide.job_type(name, config).await;
        }
        let mut leases: BTreeMap<&str, Lease> = BTreeMap::new();
        for (number, step) in (1..).zip(&self.steps) {
            let place = format!("step {number} of: {}", self.about);
            match step {
                Step::Enqueue(jobs) => {
                    for job in jobs {
                        let mut job = job.clone();
                        job.entry("data").or_insert(Value::Null);
                        tide.enqueue(job.into()).await;
                    }
                }
                Step::Start(ids) => {
                    for id in ids {
                        let lease = self.lease(tide, 20.0).await;
                        let started = lease.as_ref().map(|lease| lease.id.as_str());
                        assert_eq!(started, Some(id.as_str()), "{place}");
                        leases.extend(lease.map(|lease| (id.as_str(), lease)));
                    }
                }
                Step::Hold(reasons) => {
                    for (id, reason) in reasons {
                        holds(self, tide, plugin, (id.as_str(), reason.as_str()), &place).await;
                    }
                }
                Step::Report(reports) => {
                    for (id, report) in reports {
                        let lease = leases.remove(id.as_str()).unwrap();
                        let mut report = report.clone();
                        report.insert("attempt".to_owned(), lease.attempt.into());
                        tide.post(&lease.path, report.into()).await.is(200);
                    }
                }
                Step::Become(jobs) => {
                    for (id, expected) in jobs {
                        tide.job_when(id, |job| fits(job, expected)).await;
                    }
                }
            }
        }
    }

    /// The job that a worker of all types gets next, if one starts within `seconds`.
    async fn lease(&self, tide: &Tidegate, seconds: f64) -> Option<Lease> {
        let types: Vec<&String> = self.types.keys().collect();
        tide.lease(json!({"types": types, "max": 1, "wait_seconds": seconds})).await.pop()
    }
}

/// Waits until the throttler holds the job `id` of a waiting worker for `reason`. No job starts.
async fn holds(
    scene: &Scene,
    tide: &Tidegate,
    plugin: &str,
    (id, reason): (&str, &str),
    place: &str,
) {
    let job_type = tide.job(id).await["type"].as_str().unwrap().to_owned();
    until(|| async {
        let (lease, why) = tokio::join!(scene.lease(tide, 0.5), tide.explain(&job_type, id));
        assert!(lease.is_none(), "{lease:?} started in {place}");
        let is_held = why["held_by"] == json!({"kind": "throttler", "name": plugin})
            && why["reason"].as_str().is_some_and(|shown| shown.contains(reason));
        (is_held, why)
    })
    .await;
}

/// A policy in another language than Rust: cases, simulation, a live server, and the Rust component
/// on the recorded calls.
async fn decides_as_in_rust(file: &Path, lang: &str, source: &str) {
    let (policy, dir) = (Policy::of(file), tempfile::tempdir().unwrap());
    let (component, rust) = (policy.build(lang, source, dir.path()), policy.rust());
    let cases = policy.model().join("cases");
    let tested = done(tidegate(dir.path(), &["test", text(&component), text(&cases)]));
    assert!(tested.ends_with(" cases, 0 failed\n"), "{tested}");

    let option = if policy.is_throttler() { "--plugin" } else { "--retry-plugin" };
    let scenario = policy.model().join("scenario.json");
    let files = [text(&scenario), option, text(&component), "--against", text(&rust), "--json"];
    let simulated = done(program([&["simulate"], &files[..]].concat()).output().unwrap());
    let simulated: Value = serde_json::from_str(&simulated).unwrap();
    assert_eq!(simulated["differing_jobs"], 0, "{:#}", simulated["differences"]);

    let saved = policy.governs(&component).await;
    is_the_same(&done(tidegate(dir.path(), &["replay", text(&rust), text(saved.path())])));
}

#[rstest]
#[tokio::test]
async fn a_rust_policy_governs_a_live_queue(
    #[files("tests/it/e2e/policies/*.json")] file: PathBuf,
) {
    let policy = Policy::of(&file);
    policy.governs(&policy.rust()).await;
}

#[rstest]
#[tokio::test]
#[ignore = "needs Node.js, and fetches its tool; cargo xtask check --full runs it"]
async fn a_javascript_policy_decides_as_in_rust(
    #[files("tests/it/e2e/policies/*.json")] file: PathBuf,
) {
    decides_as_in_rust(&file, "js", "plugin.js").await;
}

#[rstest]
#[tokio::test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
async fn a_python_policy_decides_as_in_rust(
    #[files("tests/it/e2e/policies/*.json")] file: PathBuf,
) {
    decides_as_in_rust(&file, "python", "plugin.py").await;
}

/// The names of the entries in `folder` for which `has` holds, without their ends.
fn names(folder: &str, has: impl Fn(&Path) -> bool) -> BTreeSet<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    entries.filter(|path| has(path)).map(name).collect()
}

#[test]
fn every_policy_has_scenes_and_three_languages() {
    let scenes = names("tests/it/e2e/policies", |_| true);
    assert_eq!(scenes.len(), 6, "{scenes:?}");
    for source in ["src/lib.rs", "plugin.js", "plugin.py"] {
        let written = names("plugins/gallery", |model| model.join(source).is_file());
        assert!(written.is_superset(&scenes), "{source}: {written:?}");
        assert!(source == "src/lib.rs" || written.len() == 6, "{source} of {written:?}");
    }
}
