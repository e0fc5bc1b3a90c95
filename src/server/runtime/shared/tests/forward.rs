//! Lease requests that are forwarded, with a stand-in for the way to the owner.

use super::*;
use crate::{
    auth::Bounds,
    runtime::{
        shared::forward::{CLAIMS, FORWARDED_BY, FORWARDED_TO, OwnersAnswer, ReceivedRequest},
        testing::RecordingStore,
    },
};
use tidegate_core::port::store_layer::Operation;

/// What becomes of a forwarded request.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// It is answered with this status, as an owner does.
    Answer(u16),
    /// It is answered by a program that is no server of the store.
    Foreign,
    /// There is no connection.
    NotConnected,
    /// The connection breaks before the answer.
    Broken,
    /// There is never an answer.
    Silent,
    /// It is answered when there is another way.
    Late,
}

/// The way to the other servers.
struct Ways {
    way: watch::Sender<Way>,
    sent: Mutex<Vec<Request>>,
}

impl Ways {
    fn new(way: Way) -> Arc<Self> {
        Arc::new(Self { way: watch::Sender::new(way), sent: Mutex::default() })
    }

    /// How many requests were sent.
    fn sent(&self) -> usize {
        self.sent.lock().len()
    }
}

#[async_trait]
impl Target for Ways {
    async fn call(&self, request: Request) -> Result<Response, TargetError> {
        self.sent.lock().push(request);
        let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        let mut ways = self.way.subscribe();
        let way = *ways.wait_for(|way| !matches!(way, Way::Late)).await.unwrap();
        let status = match way {
            Way::Answer(status) => {
                headers.push((CLAIMS.to_owned(), "default/a/1/2,default/b/1/2".to_owned()));
                status
            }
            Way::Foreign => 200,
            Way::NotConnected => return Err(TargetError::NotConnected("refused".into())),
            Way::Broken => return Err(TargetError::NoAnswer("reset".into())),
            Way::Silent | Way::Late => std::future::pending().await,
        };
        Ok(Response { status, headers, body: "{}".into() })
    }
}

impl Deployment {
    /// The owner of the queue `default`, which is limited, and another server, which reach each other by
    /// `ways`, and a type in that queue.
    async fn two_peers(&self, ways: &Arc<Ways>) -> (Server, Server) {
        let urls = ["http://10.0.0.1:8080/", "http://10.0.0.2:8080/"];
        self.two_with(urls.map(|url| Some(peers(url, ways)))).await
    }

    /// As [`Self::two_peers`], with these peers of the two servers.
    async fn two_with(&self, peers: [Option<Peers>; 2]) -> (Server, Server) {
        let [of_one, of_other] = peers;
        let (one, other) = (self.start_as(None, of_one).await, self.start_as(None, of_other).await);
        let (owner, other) = self.owner_and_other(one, other, "default").await;
        owner.put_queue(&name("default"), limited(), None).await.unwrap();
        owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        (owner, other)
    }
}

/// A queue with a limit.
fn limited() -> QueueConfig {
    QueueConfig { concurrency: Some(100), ..QueueConfig::default() }
}

fn peers(url: &str, ways: &Arc<Ways>) -> Peers {
    Peers { url: url.to_owned(), target: Arc::clone(ways) as _ }
}

/// The name of a server, and its URL for others.
fn name_and_url(server: &Server) -> (String, String) {
    let shared = server.inner.shared.as_ref().unwrap();
    let name = shared.members.lock().own().to_owned();
    (name, shared.peers.as_ref().unwrap().url.clone())
}

/// The answer to `request`, if `server` forwards it and the owner answers.
async fn forward(server: &Server, request: &mut LeaseRequest) -> Option<OwnersAnswer> {
    let received = ReceivedRequest {
        path: "/v1/leases?x=1".into(),
        headers: vec![("authorization".into(), "Bearer secret".into())],
        body: "{\"max\": 1}".into(),
    };
    server.forward_lease(request, &Bounds::default(), received)?.await
}

#[tokio::test]
async fn the_owner_gets_the_request_as_it_was_received() {
    let (deployment, ways) = (Deployment::new(), Ways::new(Way::Answer(200)));
    let (owner, other) = deployment.two_peers(&ways).await;
    let answer = forward(&other, &mut request()).await.expect("the owner answers");
    assert_eq!((answer.content_type.as_str(), &answer.body[..]), ("application/json", &b"{}"[..]));
    let claims: Vec<String> = answer.claims.iter().map(ToString::to_string).collect();
    assert_eq!(claims, ["default/a/1/2", "default/b/1/2"]);
    let (owners_name, url) = name_and_url(&owner);
    let (others_name, _) = name_and_url(&other);
    let sent = ways.sent.lock().pop().unwrap();
    assert_eq!(sent.url, format!("{url}v1/leases?x=1"));
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        sent.headers,
        [
            header("authorization", "Bearer secret"),
            header(FORWARDED_TO, &owners_name),
            header(FORWARDED_BY, &others_name)
        ]
    );
    assert_eq!((&sent.body[..], sent.timeout), (&b"{\"max\": 1}"[..], Duration::from_secs(22)));
    assert!(forward(&owner, &mut request()).await.is_none(), "it leases itself");
    assert_eq!(ways.sent(), 0);
}

#[tokio::test]
async fn a_server_leases_itself_after_any_failure() {
    let ways_that_fail = [
        Way::Foreign,
        Way::NotConnected,
        Way::Broken,
        Way::Answer(302),
        Way::Answer(500),
        Way::Answer(503),
    ];
    for way in ways_that_fail {
        let (deployment, ways) = (Deployment::new(), Ways::new(way));
        let (_owner, other) = deployment.two_peers(&ways).await;
        for _ in 0..3 {
            assert!(forward(&other, &mut request()).await.is_none(), "{way:?}");
        }
        assert_eq!(ways.sent(), 1, "{way:?}: the next ones are not forwarded");
    }
}

#[tokio::test]
async fn an_owner_that_answers_again_gets_requests_again() {
    let (deployment, ways) = (Deployment::new(), Ways::new(Way::Broken));
    let (_owner, other) = deployment.two_peers(&ways).await;
    assert!(forward(&other, &mut request()).await.is_none());
    ways.way.send_replace(Way::Answer(200));
    // It has renewed its record by then.
    let later = deployment.clock.now() + Duration::from_secs(7);
    let limit = Duration::from_secs(8);
    deployment.within(limit, deployment.clock.sleep_until(later)).await;
    assert!(forward(&other, &mut request()).await.is_some());
}

#[tokio::test]
async fn a_request_that_the_owner_refuses_pauses_nothing() {
    let (deployment, ways) = (Deployment::new(), Ways::new(Way::Answer(404)));
    let (_owner, other) = deployment.two_peers(&ways).await;
    for number in 1..3 {
        assert!(forward(&other, &mut request()).await.is_none());
        assert_eq!(ways.sent(), number);
    }
}

#[tokio::test]
async fn an_owner_has_two_seconds_more_than_the_wait() {
    let (deployment, ways) = (Deployment::new(), Ways::new(Way::Silent));
    let (_owner, other) = deployment.two_peers(&ways).await;
    let began = deployment.clock.now();
    let mut request = LeaseRequest { wait: Duration::from_secs(1), ..request() };
    let limit = Duration::from_secs(4);
    let answer = deployment.within(limit, forward(&other, &mut request)).await;
    assert!(answer.is_none());
    assert_eq!(deployment.clock.now().since(began), Duration::from_secs(3));
    assert_eq!(request.wait, Duration::ZERO);
}

#[tokio::test]
async fn a_forwarded_request_ends_with_the_owner() {
    let (deployment, ways) = (Deployment::new(), Ways::new(Way::Silent));
    let (owner, other) = deployment.two_peers(&ways).await;
    // Its tasks end with it, and its record stays.
    drop(owner);
    let began = deployment.clock.now();
    let mut request = LeaseRequest { wait: Duration::from_mins(1), ..request() };
    let limit = Duration::from_secs(14);
    let answer = deployment.within(limit, forward(&other, &mut request)).await;
    assert!(answer.is_none());
    assert_eq!(ways.sent(), 1);
    let passed = deployment.clock.now().since(began);
    assert_eq!(request.wait + passed, Duration::from_mins(1), "the rest is left");
}

#[tokio::test]
async fn a_stop_waits_for_an_answer_for_two_seconds() {
    let (deployment, ways) = (Deployment::new(), Ways::new(Way::Silent));
    let (_owner, other) = deployment.two_peers(&ways).await;
    let (stopped, mut request) = (other.clone(), request());
    let both = async { tokio::join!(forward(&other, &mut request), stopped.stop()) };
    let limit = BY_NOTICE + Duration::from_secs(2);
    let (answer, ()) = deployment.within(limit, both).await;
    assert!(answer.is_none());
    assert_eq!(ways.sent(), 1);
}

/// The leases in it are committed already.
#[tokio::test]
async fn an_answer_is_read_when_one_of_the_servers_has_stopped() {
    for owner_stops in [true, false] {
        let (deployment, ways) = (Deployment::new(), Ways::new(Way::Late));
        let (owner, other) = deployment.two_peers(&ways).await;
        let stopped = if owner_stops { owner.clone() } else { other.clone() };
        let mut request = request();
        let both = async {
            tokio::join!(forward(&other, &mut request), async {
                stopped.stop().await;
                // The other server sees that it has left.
                while owner_stops && !other.inner.owns("default") {
                    tokio::task::yield_now().await;
                }
                ways.way.send_replace(Way::Answer(200));
            })
        };
        let (answer, ()) = deployment.within(BY_NOTICE, both).await;
        assert_eq!(answer.expect("it is read").claims.len(), 2, "{owner_stops}");
    }
}

#[tokio::test]
async fn a_server_replaces_the_killed_one_of_its_peer_url() {
    let (deployment, ways) = (Deployment::new(), Ways::new(Way::Answer(200)));
    let (owner, other) = deployment.two_peers(&ways).await;
    let (name_of_owner, url) = name_and_url(&owner);
    drop(owner);
    let _successor = deployment.start_as(None, Some(peers(&url, &ways))).await;
    let replaced = async || {
        let shared = other.inner.shared.as_ref().unwrap();
        shared.members.lock().is_silent(&name_of_owner) && members(&other) == 2
    };
    deployment.until(BY_NOTICE, replaced).await;
}

#[tokio::test]
async fn servers_that_have_one_peer_url_by_mistake_all_count() {
    let (deployment, ways) = (Deployment::new(), Ways::new(Way::Answer(200)));
    let (owner, other) = deployment.two_peers(&ways).await;
    let (_, url) = name_and_url(&owner);
    let third = deployment.start_as(None, Some(peers(&url, &ways))).await;
    for server in [&owner, &other, &third] {
        deployment.until(2 * BEAT_INTERVAL, async || members(server) == 3).await;
    }
}

#[tokio::test]
async fn the_wait_of_a_forwarded_request_ends_with_its_server() {
    let (deployment, ways) = (Deployment::new(), Ways::new(Way::Silent));
    let (owner, other) = deployment.two_peers(&ways).await;
    let (others_name, _) = name_and_url(&other);
    let waiting = LeaseRequest { wait: Duration::from_mins(1), ..request() };
    let bounds = Bounds::default();
    let both =
        async { tokio::join!(owner.lease_forwarded(waiting, &bounds, &others_name), other.stop()) };
    let (leased, ()) = deployment.within(BY_NOTICE, both).await;
    assert!(leased.unwrap().jobs.is_empty());
}

#[tokio::test]
async fn servers_forward_only_between_those_with_a_peer_url() {
    let ways = Ways::new(Way::Answer(200));
    for of_owner in [true, false] {
        let deployment = Deployment::new();
        // Which of the servers owns the queue follows from their names, which are random.
        loop {
            let peers = [Some(peers("http://10.0.0.1:8080", &ways)), None];
            let (owner, other) = deployment.two_with(peers).await;
            let is_reached = owner.forwards();
            assert_ne!(is_reached, other.forwards());
            assert!(forward(&other, &mut request()).await.is_none());
            for server in [owner, other] {
                deployment.within(BY_NOTICE, server.stop()).await;
            }
            if is_reached == of_owner {
                break;
            }
        }
    }
    assert_eq!(ways.sent(), 0);
}

#[tokio::test]
async fn only_a_request_that_one_other_server_serves_is_forwarded() {
    let (deployment, ways) = (Deployment::new(), Ways::new(Way::Answer(200)));
    let (owner, other) = deployment.two_peers(&ways).await;
    let names = (0..64).map(|number| format!("q{number}"));
    let (of_other, of_owner): (Vec<String>, Vec<String>) =
        names.partition(|queue| other.inner.owns(queue));
    let queues = [("own", of_other, limited()), ("also", of_owner, QueueConfig::default())];
    for (job_type, queues, config) in queues {
        owner.put_queue(&name(&queues[0]), config, None).await.unwrap();
        let config = TypeConfig { queue: name(&queues[0]), ..TypeConfig::default() };
        owner.put_type(&name(job_type), config, None).await.unwrap();
    }
    let cases: [(&[&str], u32, bool); 8] = [
        (&["work"], 1, true),
        (&["work", "also"], 1, true),
        (&["work", "own"], 1, false),
        (&["own"], 1, false),
        // The queue of the owner is unlimited.
        (&["also"], 1, false),
        (&["unknown"], 1, false),
        (&["work"], 0, false),
        (&["work"], 1001, false),
    ];
    for (types, max, is_forwarded) in cases {
        let types = types.iter().map(|text| name(text)).collect();
        let mut request = LeaseRequest { types, max, ..request() };
        let is_answered = forward(&other, &mut request).await.is_some();
        assert_eq!(is_answered, is_forwarded, "{:?} {max}", request.types);
    }
    assert_eq!(ways.sent(), 2);
}

#[tokio::test]
async fn a_server_reads_the_configuration_at_times_to_forward() {
    let (deployment, ways) = (Deployment::new(), Ways::new(Way::Answer(200)));
    let store = RecordingStore::new(Arc::clone(&deployment.store));
    let start = async |url: &str| {
        let store = Arc::clone(&store) as SharedStore;
        deployment.builder(store, None, Some(peers(url, &ways))).start().await.unwrap()
    };
    let (one, other) = (start("http://10.0.0.1").await, start("http://10.0.0.2").await);
    let (owner, other) = deployment.owner_and_other(one, other, "default").await;
    owner.put_queue(&name("default"), limited(), None).await.unwrap();
    for job_type in ["work", "late"] {
        owner.put_type(&name(job_type), TypeConfig::default(), None).await.unwrap();
        let mut request = LeaseRequest { types: vec![name(job_type)], ..request() };
        assert!(forward(&other, &mut request).await.is_some(), "it reads the new type");
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        store.take();
        assert!(forward(&other, &mut request).await.is_some());
        assert_eq!(store.take(), Vec::<Operation>::new());
    }
}

#[tokio::test]
async fn a_repeat_that_requests_no_more_jobs_is_forwarded() {
    let (deployment, ways) = (Deployment::new(), Ways::new(Way::Answer(200)));
    let (_owner, other) = deployment.two_peers(&ways).await;
    let call = other.repeatable_call("0123456789abcdef", None).unwrap();
    let mut repeat = LeaseRequest { max: 0, call: Some(call), ..request() };
    assert!(forward(&other, &mut repeat).await.is_some());
}

#[tokio::test]
async fn a_server_takes_what_was_forwarded_to_its_name() {
    let (deployment, ways) = (Deployment::new(), Ways::new(Way::Silent));
    let (owner, other) = deployment.two_peers(&ways).await;
    let (owners_name, _) = name_and_url(&owner);
    assert!(owner.takes_forwarded(owners_name.as_bytes()));
    assert!(!other.takes_forwarded(owners_name.as_bytes()));
    deployment.within(BY_NOTICE, owner.stop()).await;
    assert!(!owner.takes_forwarded(owners_name.as_bytes()), "it has stopped");
}
