//! The sessions of the page about several servers run as printed, on Postgres servers of the tests.

use std::fs;

use tidegate_backends::postgres::test_server::{self, OwnServer};

use super::{one_spaced, root, run};

/// The blocks of commands in the section `title` of the page.
fn blocks(title: &str) -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/deploy-postgres.md")).unwrap();
    let (_, section) = page.split_once(&format!("\n## {title}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let blocks = section.split("```sh,no-run\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// A substitution of bash whose value is `text`. Its digits must not look like ports.
fn substitution(text: &str) -> String {
    let octal = text.bytes().fold(String::new(), |all, byte| all + &format!("\\{byte:03o}"));
    format!("$(printf '{octal}')")
}

/// Runs a session. Each of `expected` is a line that it prints.
fn prints(session: &str, expected: &[&str]) {
    let ran = run(session, &[]);
    assert!(ran.good, "{ran}");
    let lines: Vec<String> = ran.out.lines().map(one_spaced).collect();
    for expected in expected {
        assert!(lines.iter().any(|line| line == expected), "{expected}: {ran}");
    }
}

#[test]
fn servers_on_one_database_run_as_printed() {
    let printed = blocks("Try it on one machine").concat();
    let (rest, make) = ("export TIDEGATE_STORE=", "sudo -u postgres psql ");
    let (before, after) = printed.split_once(make).unwrap();
    let printed = format!("{before}{rest}{}", after.split_once(rest).unwrap().1);

    let store = "postgres://tidegate:PASSWORD@localhost/tidegate?sslmode=disable";
    assert!(printed.contains(store), "{printed}");
    let address = test_server::address("postgres");
    let address = format!("{address}&schema={}", test_server::new_name());
    let session = printed.replace(store, &substitution(&address));
    prints(&session, &["jobs 1 1 1 0 0", "\"DEAR READER\""]);
}

/// A machine with a server and a job. It has no systemd, and its only user is that of the tests.
const MACHINE: &str = r#"
unset TIDEGATE_LISTEN
export TIDEGATE_URL=http://127.0.0.1:9001
sudo() { if [ "$1" = -u ]; then shift 2; fi; "$@"; }
chown() { :; }
openssl() { head -c 32 /dev/urandom | base64; }
systemctl() {
    if [ "$1" = stop ]; then
        kill $server
        wait $server
    else
        tidegate serve --config $config &
        server=$!
        until curl --silent --fail --output /dev/null $TIDEGATE_URL/readyz; do
            kill -0 $server
            sleep 0.1
        done
    fi
}
mkdir -p etc/tidegate var/lib var/backups
config=etc/tidegate/tidegate.toml
printf 'data = "var/lib/tidegate"\nlisten = "127.0.0.1:9001"\n' >$config
systemctl enable --now tidegate
tidegate types put letter --config '{}'
tidegate enqueue --type letter --id first --data '"dear reader"'
"#;

/// The start of each server, around what is printed for it. It has its own copy of the settings.
const EACH: [&str; 2] = [
    r#"
for port in 9001 9002 9003; do
config=etc/tidegate/$port.toml
sed "s/:9001\"/:$port\"/" etc/tidegate/tidegate.toml >$config
export TIDEGATE_URL=http://127.0.0.1:$port
"#,
    "done\n",
];

/// A worker at one server runs the job, and another server has the result.
const WORK: &str = "
tidegate work --url http://127.0.0.1:9003 --type letter -- tr a-z A-Z &
tidegate jobs result first --wait 10s --url http://127.0.0.1:9002
kill $(jobs -p); wait
";

/// The six steps. The last one has no commands.
#[test]
fn servers_on_one_database_are_made_as_printed() {
    let steps = blocks("From one machine to three servers");
    let [make, stop, copy, start, look] = &steps[..] else { panic!("{steps:#?}") };
    // A database as durable as `tidegate doctor` requires.
    let postgres = OwnServer::start_as("fsync = on\nfull_page_writes = on\n");
    let (_, sql) = make.split_once("<<'SQL'\n").unwrap();
    // The role `tidegate` of such a server may do anything.
    let sql = sql.split("\nSQL\n").next().unwrap().replace("tidegate", "jobs");
    execute(&postgres.address(), &sql);
    let address = postgres.address().replace("tidegate@", "jobs:PASSWORD@");
    let address = address.replace("/postgres?", "/jobs?");

    let places = [
        ("postgres://tidegate:PASSWORD@db.example/tidegate?sslmode=require", "@store@"),
        ("\"0.0.0.0:8080\"", "\"127.0.0.1:9001\""),
        ("http://10.0.0.7:8080", "http://127.0.0.1:9001"),
        ("  # if it has none", " | tee token"),
        ("tg_...", "$(cat token)"),
        ("/etc/tidegate", "etc/tidegate"),
        ("/var/", "var/"),
    ];
    for (printed, _) in places {
        assert!(steps.iter().any(|step| step.contains(printed)), "{printed}");
    }
    let here = |step: &str| {
        places.iter().fold(step.to_owned(), |step, (printed, here)| step.replace(printed, here))
    };
    let store = substitution(&address);
    let session: [&str; 9] = [
        MACHINE,
        &here(stop),
        &format!("sed -i.bak \"s|@store@|{store}|\" etc/tidegate/tidegate.toml\n"),
        &here(copy),
        EACH[0],
        &here(start),
        EACH[1],
        &here(look),
        WORK,
    ];
    prints(&session.concat(), &["jobs 1 1 1 0 0", "\"DEAR READER\""]);
}

/// Executes lines of SQL, each by itself: a database is made in no transaction.
fn execute(address: &str, sql: &str) {
    let config: tokio_postgres::Config = address.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        for line in sql.lines() {
            client.simple_query(line).await.unwrap();
        }
    });
}
