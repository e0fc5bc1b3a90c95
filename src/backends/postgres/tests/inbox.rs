//! The function `enqueue` for applications, and the requests that it leaves.

use std::{collections::BTreeSet, task::Poll, time::Duration};

use futures_util::poll;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::server::{RUNTIME, open, settings};
use crate::{
    postgres::{
        PostgresStore, Settings,
        test_server::{address, new_name},
    },
    system::SystemClock,
};
use tidegate_core::{
    job::JobId,
    port::{
        Clock as _, HealthCheck as _, Inbox as _, InboxClosing, InboxDepth, InboxPage,
        InboxRequest, InboxRules, JobStore as _, Notice, Notices as _, Write,
        job_store::{Committed, CurrentRecord, ItemKind},
    },
};
use tidegate_engine::testkit::builders::{job, name};

/// A store whose inbox knows the type `mail`, and a connection of an application.
struct Fixture {
    store: PostgresStore,
    settings: Settings,
    application: Client,
}

impl Fixture {
    fn new() -> Self {
        let settings = settings();
        let store = open(&settings);
        let fixture = Self { application: connect("tidegate"), store, settings };
        fixture.add_type("mail");
        fixture
    }

    fn add_type(&self, name: &str) {
        let (kind, bytes) = (ItemKind::Type, Some(b"{}".to_vec()));
        let item = Write::SetItem { kind, name: name.into(), was: 0, version: 1, bytes };
        RUNTIME.block_on(self.store.commit(vec![vec![item]])).unwrap();
    }

    /// A call of `enqueue` with these arguments.
    fn call(&self, arguments: &str) -> String {
        format!("SELECT \"{}\".enqueue({arguments})", self.settings.schema)
    }

    /// The id that a call of `enqueue` returns.
    fn enqueue(&self, arguments: &str) -> JobId {
        first(&self.application, &self.call(arguments)).unwrap().parse().unwrap()
    }

    fn requests(&self) -> Vec<InboxRequest> {
        self.page(0, u64::MAX, 1000).requests
    }

    fn page(&self, after: u64, until: u64, limit: u32) -> InboxPage {
        RUNTIME.block_on(self.store.inbox().requests(after, until, limit)).unwrap()
    }

    fn close(&self) -> InboxClosing {
        RUNTIME.block_on(self.store.inbox().close()).unwrap()
    }

    fn take(&self, id: &JobId) -> Committed {
        let txn = vec![Write::TakeRequest(id.clone()), Write::AddJob(job(id.as_str()).build())];
        RUNTIME.block_on(self.store.commit(vec![txn])).unwrap().remove(0)
    }
}

/// A connection of a role.
fn connect(role: &str) -> Client {
    let mut config: tokio_postgres::Config = address("postgres").parse().unwrap();
    config.user(role);
    RUNTIME.block_on(async {
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    })
}

/// The first value of the first row, or the message of the error.
fn first(client: &Client, sql: &str) -> Result<String, String> {
    let messages = RUNTIME.block_on(client.simple_query(sql)).map_err(|error| {
        error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
    })?;
    let value = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    Ok(value.unwrap_or_default())
}

#[test]
fn a_request_has_what_its_transaction_gave() {
    let fixture = Fixture::new();
    let before = SystemClock.now();
    let first = fixture.enqueue("'mail'");
    let second = fixture.enqueue(
        r#"'mail', '{"to":  "a", "n": 12345678901234567890}', delay => '90 seconds',
           options => '{"priority": 3}'"#,
    );
    let third = fixture.enqueue("type => 'mail', run_at => '2030-01-02 03:04:05.678Z'");
    let [one, two, three] = &fixture.requests()[..] else { panic!("three requests") };
    assert_eq!([&one.id, &two.id, &three.id], [&first, &second, &third]);
    assert_eq!(
        (&*one.job_type, &one.data[..], &one.options[..]),
        ("mail", &b"null"[..], &b"{}"[..])
    );
    assert_eq!((one.run_at, one.delay, &*one.caller), (None, None, "tidegate"));
    assert_eq!(&two.data[..], br#"{"to":  "a", "n": 12345678901234567890}"#);
    assert_eq!(&two.options[..], br#"{"priority": 3}"#);
    let left = two.delay.unwrap();
    assert!(left <= Duration::from_secs(90) && left > Duration::from_mins(1), "{left:?}");
    assert_eq!(three.run_at, Some("2030-01-02T03:04:05.678Z".parse().unwrap()));
    // The ids are those of an engine: the time, and random digits.
    let drawn = |id: &JobId| id.as_str().parse::<ulid::Ulid>().unwrap();
    let earliest = before.millis() as u64;
    assert!((earliest..earliest + 60_000).contains(&drawn(&first).timestamp_ms()));
    assert_ne!(drawn(&first).random(), drawn(&second).random());
    let found = RUNTIME.block_on(fixture.store.inbox().request(&second)).unwrap();
    assert_eq!(found.unwrap().options, two.options);
}

#[test]
fn a_transaction_that_is_rolled_back_requests_nothing() {
    let fixture = Fixture::new();
    let enqueue = fixture.call("'mail'");
    first(&fixture.application, &format!("BEGIN; {enqueue}; ROLLBACK")).unwrap();
    assert_eq!(fixture.requests(), []);
    let open = connect("tidegate");
    let id = first(&open, &format!("BEGIN; {enqueue}")).unwrap();
    let later = fixture.enqueue("'mail'");
    let ids = || fixture.requests().into_iter().map(|request| request.id).collect::<Vec<_>>();
    assert_eq!(ids(), std::slice::from_ref(&later));
    first(&open, "COMMIT").unwrap();
    assert_eq!(ids(), [id.parse().unwrap(), later]);
}

#[test]
fn wrong_arguments_are_refused_and_named() {
    let fixture = Fixture::new();
    let rules = InboxRules { max_data_bytes: 100, create_unknown_types: false };
    RUNTIME.block_on(fixture.store.inbox().set_rules(rules)).unwrap();
    let long = format!("'mail', '\"{}\"'", "x".repeat(99));
    for (arguments, problem) in [
        ("NULL", "type: must be 1 to 64 of"),
        ("'a b'", "type: must be 1 to 64 of"),
        ("'..'", "type: must be 1 to 64 of"),
        ("'other'", "type: there is no job type other"),
        ("'mail', NULL", "data: must not be NULL"),
        (&long, "data: is larger than 100 bytes"),
        ("'mail', '{]'", "invalid input syntax for type json"),
        ("'mail', delay => '-1 second'", "delay: must not be negative"),
        ("'mail', delay => '1 s', run_at => now()", "delay: must not be given with run_at"),
        ("'mail', run_at => '1969-12-31 23:59:59Z'", "run_at: must be from 1970 to 9999"),
        ("'mail', run_at => 'infinity'", "run_at: must be from 1970 to 9999"),
        ("'mail', options => '[]'", "options: must be a JSON object"),
        ("'mail', options => NULL", "options: must be a JSON object"),
        ("'mail', options => json_build_object('a', repeat('x', 65536))", "options: are larger"),
    ] {
        let refused = first(&fixture.application, &fixture.call(arguments)).unwrap_err();
        assert!(refused.starts_with(problem), "{arguments}: {refused}");
    }
    assert_eq!(fixture.requests(), []);
    let rules = InboxRules { max_data_bytes: 101, create_unknown_types: true };
    RUNTIME.block_on(fixture.store.inbox().set_rules(rules)).unwrap();
    fixture.enqueue(&long);
    fixture.enqueue("'other'");
}

#[test]
fn a_closed_inbox_says_that_the_jobs_are_moved() {
    let fixture = Fixture::new();
    for _ in 0..2 {
        assert_eq!(fixture.close(), InboxClosing::Closed);
        for arguments in ["'mail'", "'other'"] {
            let refused = first(&fixture.application, &fixture.call(arguments)).unwrap_err();
            assert!(refused.contains("are moved to another store"), "{arguments}: {refused}");
        }
    }
    assert_eq!(fixture.requests(), []);
    // A server starts here again.
    let rules = InboxRules { max_data_bytes: 100, create_unknown_types: false };
    for _ in 0..2 {
        RUNTIME.block_on(fixture.store.inbox().set_rules(rules)).unwrap();
    }
    let id = fixture.enqueue("'mail'");
    assert!(matches!(fixture.take(&id), Committed::All));
}

/// A transaction that has made a request and commits later would leave it behind a move.
#[test]
fn an_inbox_is_not_closed_before_the_open_transactions_end() {
    let fixture = Fixture::new();
    let enqueue = fixture.call("'mail'");
    let named = "SET application_name = 'the shop'";
    first(&fixture.application, &format!("{named}; BEGIN; {enqueue}")).unwrap();
    let idle = connect("tidegate");
    first(&idle, "BEGIN; SELECT 1").unwrap();
    let InboxClosing::InUse(users) = fixture.close() else { panic!("a request is not committed") };
    let [user] = &users[..] else { panic!("{users:?}") };
    assert!(user.ends_with("of role tidegate, the shop"), "{user}");
    let refused = first(&connect("tidegate"), &enqueue).unwrap_err();
    assert!(refused.contains("are moved to another store"), "{refused}");
    first(&fixture.application, "COMMIT").unwrap();
    assert_eq!(fixture.close(), InboxClosing::Closed, "one that has requested nothing may go on");
    assert_eq!(fixture.requests().len(), 1, "the request is seen");
}

/// Its snapshot still has the rules of an open inbox.
#[test]
fn an_older_snapshot_requests_nothing_of_a_closed_inbox() {
    let fixture = Fixture::new();
    let old = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";
    first(&fixture.application, old).unwrap();
    assert_eq!(fixture.close(), InboxClosing::Closed);
    let refused = first(&fixture.application, &fixture.call("'mail'")).unwrap_err();
    assert!(refused.contains("the_jobs_are_moved_to_another_store"), "{refused}");
    first(&fixture.application, "COMMIT").unwrap();
    assert_eq!(fixture.requests(), []);
}

#[test]
fn a_request_is_taken_once_with_its_job() {
    let fixture = Fixture::new();
    let (id, other) = (fixture.enqueue("'mail'"), fixture.enqueue("'mail'"));
    assert!(matches!(fixture.take(&id), Committed::All));
    let again = fixture.take(&id);
    let Committed::Conflict { step: 0, current: CurrentRecord::Nothing } = again else {
        panic!("{again:?}")
    };
    // In a group of transactions, only the one without a request is refused.
    let txns = [&id, &other].map(|id| {
        let add = Write::AddJob(job(&format!("of-{id}")).build());
        vec![Write::TakeRequest(id.clone()), add]
    });
    let answers = RUNTIME.block_on(fixture.store.commit(txns.to_vec())).unwrap();
    assert!(matches!(answers[..], [Committed::Conflict { step: 0, .. }, Committed::All]));
    assert_eq!(fixture.requests(), []);
    let jobs = [id.clone(), name(&format!("of-{id}")), name(&format!("of-{other}"))];
    let found = RUNTIME.block_on(fixture.store.get(&jobs)).unwrap();
    let is_there: Vec<bool> = found.into_iter().map(|job| job.unwrap().is_some()).collect();
    assert_eq!(is_there, [true, false, true]);
}

#[test]
fn a_role_needs_nothing_but_the_function() {
    let fixture = Fixture::new();
    let (role, schema) = (new_name(), &fixture.settings.schema);
    let granted = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA \"{schema}\" TO {role}; \
         GRANT EXECUTE ON FUNCTION \"{schema}\".enqueue TO {role}"
    );
    first(&fixture.application, &granted).unwrap();
    let application = connect(&role);
    // Objects of the caller do not take the place of those of the function.
    let own = "CREATE TEMP TABLE inbox (id text); CREATE TEMP TABLE items (id text)";
    first(&application, own).unwrap();
    first(&application, &fixture.call("'mail'")).unwrap();
    assert_eq!(fixture.requests()[0].caller, role);
    for table in ["inbox", "items", "jobs"] {
        let refused = first(&application, &format!("SELECT count(*) FROM \"{schema}\".{table}"));
        assert!(refused.unwrap_err().starts_with("permission denied"), "{table}");
    }
    let other = new_name();
    first(
        &fixture.application,
        &format!("CREATE ROLE {other} LOGIN; GRANT USAGE ON SCHEMA \"{schema}\" TO {other}"),
    )
    .unwrap();
    let refused = first(&connect(&other), &fixture.call("'mail'")).unwrap_err();
    assert!(refused.starts_with("permission denied for function enqueue"), "{refused}");
}

#[test]
fn a_page_of_requests_is_bounded_by_its_data() {
    let fixture = Fixture::new();
    let rules = InboxRules { max_data_bytes: 10 << 20, create_unknown_types: false };
    RUNTIME.block_on(fixture.store.inbox().set_rules(rules)).unwrap();
    for megabytes in [5, 5, 1] {
        fixture.enqueue(&format!("'mail', to_json(repeat('x', {megabytes} << 20))"));
    }
    let (mut after, mut pages) = (0, Vec::new());
    loop {
        let page = fixture.page(after, u64::MAX, 100);
        let Some(last) = page.last else { break };
        after = last;
        pages.push(page.requests.len());
    }
    assert_eq!(pages, [2, 1]);
    assert_eq!(fixture.page(0, u64::MAX, 1).requests.len(), 1);
    assert_eq!(fixture.page(1, 2, 100).last, Some(2));
    assert_eq!(RUNTIME.block_on(fixture.store.inbox().newest()).unwrap(), 3);
}

#[test]
fn requests_of_one_transaction_keep_their_order() {
    let fixture = Fixture::new();
    assert_eq!(RUNTIME.block_on(fixture.store.inbox().newest()).unwrap(), 0);
    let many = fixture.call("'mail', to_json(n)");
    first(&fixture.application, &format!("{many} FROM generate_series(1, 50) n")).unwrap();
    let data = fixture.requests().into_iter().map(|request| request.data);
    let expected = (1..=50).map(|n: u32| n.to_string());
    assert!(data.eq(expected));
}

#[test]
fn a_row_that_cannot_be_read_stops_no_other() {
    let fixture = Fixture::new();
    let insert = format!(
        "INSERT INTO \"{}\".inbox (id, type, data, bytes, options, called_at, caller) \
         VALUES ('a b', 'mail', '1', 9000000, '{{}}', now(), 'a')",
        fixture.settings.schema
    );
    first(&fixture.application, &insert).unwrap();
    let next = fixture.enqueue("'mail'");
    assert_eq!(fixture.page(0, u64::MAX, 100), InboxPage { requests: Vec::new(), last: Some(1) });
    assert_eq!(fixture.page(1, u64::MAX, 100).requests[0].id, next);
}

#[test]
fn requests_that_wait_for_long_are_reported() {
    let fixture = Fixture::new();
    let finding = || {
        let checks = RUNTIME.block_on(fixture.store.health().checks());
        checks.into_iter().find(|check| check.about == "inbox").map(|check| check.found)
    };
    let depth = |limit| RUNTIME.block_on(fixture.store.inbox().depth(limit)).unwrap();
    assert_eq!(depth(10), InboxDepth::default());
    fixture.enqueue("'mail'");
    fixture.enqueue("'mail'");
    assert_eq!((depth(10).requests, depth(1).requests), (2, 1));
    assert!(depth(10).oldest_age < Duration::from_secs(90));
    assert_eq!(finding(), None);
    let age = format!(
        "UPDATE \"{}\".inbox SET called_at = called_at - interval '90 s'",
        fixture.settings.schema
    );
    first(&fixture.application, &age).unwrap();
    assert!(finding().unwrap().contains("has waited for 9"));
    assert!(depth(10).oldest_age >= Duration::from_secs(90), "{:?}", depth(10));
}

#[test]
fn the_statements_of_the_page_work_as_printed() {
    let fixture = Fixture::new();
    let page = include_str!("../../../../docs/transactions.md");
    let (role, schema) = (new_name(), &fixture.settings.schema);
    let statements: Vec<String> = page
        .split("```sql\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap())
        .map(|sql| sql.replace("tidegate", &format!("\"{schema}\"")).replace("shop", &role))
        .collect();
    let [transaction, grants, with_parameters, notify] = &statements[..] else {
        panic!("{statements:?}")
    };
    first(&fixture.application, &format!("CREATE ROLE {role} LOGIN")).unwrap();
    first(&fixture.application, grants).unwrap();
    fixture.add_type("invoice");
    let application = connect(&role);
    first(&application, "CREATE TEMP TABLE orders (id int, customer text)").unwrap();
    let id = first(&application, transaction).unwrap();
    let [request] = &fixture.requests()[..] else { panic!("one request") };
    assert_eq!((request.id.as_str(), &*request.caller), (&*id, &*role));
    assert_eq!(&request.data[..], br#"{"order" : 17}"#);
    assert!(request.delay.unwrap() > Duration::from_mins(4));
    let prepared = format!("PREPARE enqueue AS {with_parameters}");
    first(&application, &prepared).unwrap();
    first(&application, r#"EXECUTE enqueue('{"order": 18}', '5 minutes')"#).unwrap();
    assert_eq!(fixture.requests().len(), 2);
    let notices = fixture.store.notices();
    let received = RUNTIME.block_on(async {
        let mut receiving = notices.receive();
        loop {
            if let Poll::Ready(received) = poll!(&mut receiving) {
                break received.unwrap();
            }
            // It may not listen yet.
            application.batch_execute(notify).await.unwrap();
        }
    });
    assert_eq!(received, BTreeSet::from([Notice::Inbox]));
}
