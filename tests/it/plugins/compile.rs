//! Components that are refused at the push, with their messages.

use std::time::Duration;

use bytes::Bytes;
use tidegate_backends::wasm::{
    compile::{CompileError, Compiler},
    compile_process::Process,
};

use super::{
    compiled,
    guest::{FOREVER, Guest},
    new_host, refused,
};

/// The compiler as the server runs it.
fn process() -> Process {
    Process::new(env!("CARGO_BIN_EXE_tidegate"), ["compile-plugin"])
}

async fn refused_for(guest: Guest, part: &str) {
    let messages = refused(guest.component()).await;
    assert!(messages.iter().any(|message| message.contains(part)), "{messages:?}");
}

#[tokio::test]
async fn a_plugin_is_compiled_and_describes_itself() {
    let guest = Guest::throttler()
        .schema(r#"{"type":"object"}"#)
        .group_by(&["region", "customer"])
        .needs(true, false, true);
    let artifact = compiled(guest.component()).await.unwrap();
    assert!(artifact.retry.is_none());
    let said = artifact.throttler.unwrap();
    assert_eq!(said.about, "A guest of the tests.");
    assert_eq!(said.config_schema.as_deref(), Some(r#"{"type":"object"}"#));
    assert_eq!(
        (said.state_version, said.group_by),
        (1, vec!["region".to_owned(), "customer".to_owned()])
    );
    assert_eq!((said.needs_running_jobs, said.needs_data, said.needs_ended), (true, false, true));

    let artifact = compiled(Guest::retry().component()).await.unwrap();
    assert!(artifact.retry.is_some() && artifact.throttler.is_none());
}

#[tokio::test]
async fn a_process_of_its_own_compiles_the_same() {
    let wasm = Bytes::from(Guest::throttler().component());
    let apart = new_host(&<_>::default())
        .compile(wasm.clone(), &Compiler::Process(process()))
        .await
        .unwrap();
    let here = compiled(wasm.to_vec()).await.unwrap();
    assert_eq!((apart.compiled, apart.throttler), (here.compiled, here.throttler));
    assert_eq!(apart.sha256.len(), 64);
}

#[tokio::test]
async fn what_the_process_refuses_comes_with_its_reasons() {
    let error = new_host(&<_>::default())
        .compile(Bytes::from_static(b"hello"), &Compiler::Process(process()))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, CompileError::Refused(refused) if refused.messages[0].starts_with("it is not WebAssembly")),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_compiler_that_does_not_start_is_no_fault_of_the_plugin() {
    let wasm = Bytes::from(Guest::throttler().component());
    for program in ["/nowhere/tidegate", "/bin/false", "/bin/echo"] {
        let compiler = Compiler::Process(Process::new(program, [] as [&str; 0]));
        let error = new_host(&<_>::default()).compile(wasm.clone(), &compiler).await.unwrap_err();
        assert!(matches!(error, CompileError::Failed(_)), "{program}: {error:?}");
    }
}

#[tokio::test]
async fn out_of_memory_blames_the_plugin_a_compiler_panic_does_not() {
    let wasm = Bytes::from(Guest::throttler().component());
    for (last, refused) in [
        ("memory allocation of 64 bytes failed\nnote: more", true),
        ("thread 'main' panicked", false),
    ] {
        let script = format!("echo '{last}' >&2; kill -ABRT $$");
        let compiler = Compiler::Process(Process::new("/bin/sh", ["-c", &script]));
        let error = new_host(&<_>::default()).compile(wasm.clone(), &compiler).await.unwrap_err();
        assert_eq!(matches!(error, CompileError::Refused(_)), refused, "{last}: {error:?}");
    }
}

#[tokio::test]
async fn what_is_no_webassembly_is_refused() {
    for bytes in [&b""[..], b"hello", b"\0as", &[0xff; 100]] {
        assert!(refused(bytes.to_vec()).await[0].starts_with("it is not WebAssembly"));
    }
}

#[tokio::test]
async fn a_core_module_is_refused() {
    assert!(
        refused(Guest::throttler().module()).await[0]
            .starts_with("it is a core module, not a component")
    );
}

#[tokio::test]
async fn a_component_that_was_cut_off_is_refused() {
    let mut wasm = Guest::throttler().component();
    wasm.truncate(wasm.len() / 2);
    assert!(refused(wasm).await[0].starts_with("it is not a well-formed component"));
}

#[tokio::test]
async fn a_component_of_another_world_is_refused() {
    let wasm =
        wat::parse_str(r#"(component (component $c) (instance $i (instantiate $c)) (export "other:thing/api@1.0.0" (instance $i)))"#)
            .unwrap();
    let messages = refused(wasm).await;
    let wanted = "it is not a plugin: it exports other:thing/api@1.0.0, and should export tidegate:plugin/throttle@0.2.0";
    assert!(messages[0].starts_with(wanted), "{messages:?}");
}

#[tokio::test]
async fn another_contract_version_is_refused_a_later_patch_accepted() {
    refused_for(
        Guest::throttler().version("0.1.0"),
        "it is built for version 0.1.0 of the contract, and this server offers 0.2.0; take the SDK",
    )
    .await;
    compiled(Guest::throttler().version("0.2.3").component()).await.unwrap();
}

#[tokio::test]
async fn wasi_is_refused_by_name() {
    let added = "package wasi:clocks@0.2.6 { interface monotonic-clock { now: func() -> u64; } }
                 package wasi:cli@0.2.6 { interface stdout { flush: func(); } }
                 world with-wasi { include throttler; import wasi:clocks/monotonic-clock@0.2.6; import wasi:cli/stdout@0.2.6; }";
    // The world has to stand before the other packages.
    let (packages, world) = added.split_at(added.find("world").unwrap());
    let guest = Guest::throttler()
        .world("with-wasi", &format!("{world}\n{packages}"))
        .import(r#"(import "wasi:clocks/monotonic-clock@0.2.6" "now" (func (result i64)))"#)
        .import(r#"(import "wasi:cli/stdout@0.2.6" "flush" (func))"#);
    let messages = refused(guest.component()).await;
    let [message] = &messages[..] else { panic!("{messages:?}") };
    assert!(
        message.contains("wasi:clocks/monotonic-clock@0.2.6")
            && message.contains("wasi:cli/stdout@0.2.6"),
        "{message}"
    );
    assert!(
        message.contains("`tidegate plugin build` makes a component without WASI"),
        "{message}"
    );
}

#[tokio::test]
async fn an_interface_that_is_not_in_the_contract_is_refused() {
    let added = "interface network { fetch: func(); } world with-network { include throttler; import network; }";
    let guest = Guest::throttler()
        .world("with-network", added)
        .import(r#"(import "tidegate:plugin/network@0.2.0" "fetch" (func))"#);
    refused_for(guest, "it imports tidegate:plugin/network@0.2.0, which is not in the contract")
        .await;
}

/// The names are the contract's, and the types behind them are not.
#[tokio::test]
async fn a_role_of_another_shape_is_refused() {
    let role = r#"(component
        (core module $m (func (export "f")))
        (core instance $i (instantiate $m))
        (func $f (canon lift (core func $i "f")))
        (component $c (import "f" (func $f)) (export "decide" (func $f)) (export "describe" (func $f)) (export "check-config" (func $f)))
        (instance $role (instantiate $c (with "f" (func $f))))
        (export "tidegate:plugin/throttle@0.2.0" (instance $role)))"#;
    let messages = refused(wat::parse_str(role).unwrap()).await;
    assert!(
        messages[0].starts_with("`throttle.describe`: does not fit the contract: "),
        "{messages:?}"
    );
}

#[tokio::test]
async fn a_huge_component_is_refused_unread() {
    let mut wasm = Guest::throttler().component();
    wasm.resize((32 << 20) + 1, 0);
    assert!(refused(wasm).await[0].ends_with("at most 33554432 (32 MiB) are taken"));
}

#[tokio::test]
async fn huge_parts_are_refused_before_they_are_compiled() {
    let locals = format!("(func (local {}))", "i64 ".repeat(1001));
    refused_for(
        Guest::throttler().items(&locals),
        "has 1001 local variables; at most 1000 are taken",
    )
    .await;
    let body = format!("(func {})", "(drop (i32.const 1000000))".repeat(120_000));
    refused_for(Guest::throttler().items(&body), "at most 524288 (512 KiB) are taken").await;
    refused_for(
        Guest::throttler().items(&"(func)".repeat(30_001)),
        "functions; at most 30000 are taken",
    )
    .await;
    refused_for(
        Guest::throttler().items(&"(global i64 (i64.const 0))".repeat(65_537)),
        "the global variables of its instances take 1048608 bytes; at most 1048576 are taken",
    )
    .await;
}

#[tokio::test]
async fn the_global_variables_of_every_instance_count() {
    let globals = "(global i64 (i64.const 0))".repeat(1100);
    let instances = "(core instance (instantiate $m))".repeat(60);
    let flat = format!("(component (core module $m {globals}) {instances})");
    // A module counts in each instance of the component around it.
    let inner = format!(
        "(component (component $c (core module $m {globals}) (core instance (instantiate $m))) {})",
        "(instance (instantiate $c))".repeat(60)
    );
    for component in [flat, inner] {
        let bytes = 60 * 1100 * 16;
        let messages = refused(wat::parse_str(component).unwrap()).await;
        let wanted = format!("take {bytes} bytes; at most 1048576 are taken");
        assert!(messages.iter().any(|message| message.contains(&wanted)), "{messages:?}");
    }
}

#[tokio::test]
async fn an_interface_without_functions_is_refused_with_their_names() {
    let empty = r#"(component (component $c) (instance $i (instantiate $c))
        (export "tidegate:plugin/throttle@0.2.0" (instance $i)))"#;
    let messages = refused(wat::parse_str(empty).unwrap()).await;
    assert!(
        messages[0].contains("`throttle` has describe, check-config and decide"),
        "{messages:?}"
    );
}

/// A compiler that refuses every component, and never ends for one that begins with `slow`. Each
/// process leaves a file in `dir`. `exec` leaves no process behind when the compiler is ended.
fn fake_compiler(dir: &std::path::Path) -> Process {
    let script = format!(
        "touch {}/$$; if [ \"$(head -c 4)\" = slow ]; then exec sleep 600; fi; printf 'R[\"ok\"]'",
        dir.display()
    );
    let script = format!("PATH=/usr/bin:/bin; {script}");
    Process::new("/bin/sh", ["-c", &script]).first_turn(Duration::from_millis(100))
}

#[tokio::test]
async fn slow_components_do_not_hold_up_others() {
    let dir = tempfile::tempdir().unwrap();
    let compiler = Compiler::Process(fake_compiler(dir.path()));
    let compile = |wasm: &'static [u8]| {
        let (host, compiler) = (new_host(&<_>::default()), compiler.clone());
        tokio::spawn(async move { host.compile(Bytes::from_static(wasm), &compiler).await })
    };
    let slow = [compile(b"slow 1"), compile(b"slow 2"), compile(b"slow 3")];
    // The first one is compiled for long, and the second one has its first turn.
    while std::fs::read_dir(dir.path()).unwrap().count() < 2 {
        tokio::task::yield_now().await;
    }
    let good = tokio::time::timeout(Duration::from_secs(30), compile(b"good")).await;
    let error = good.expect("it does not wait for the slow ones").unwrap().unwrap_err();
    assert!(matches!(error, CompileError::Refused(refused) if refused.messages == ["ok"]));
    for compiling in slow {
        assert!(!compiling.is_finished(), "each waits for its turn to be compiled for long");
        compiling.abort();
    }
}

#[tokio::test]
async fn the_bytes_of_waiting_components_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let compiler = Compiler::Process(fake_compiler(dir.path()));
    let mut wasm = vec![0; 32 << 20];
    wasm[..4].copy_from_slice(b"slow");
    let wasm = Bytes::from(wasm);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let (host, compiler, wasm) = (new_host(&<_>::default()), compiler.clone(), wasm.clone());
        waiting.spawn(async move { host.compile(wasm, &compiler).await });
    }
    let first = tokio::time::timeout(Duration::from_secs(30), waiting.join_next()).await;
    let error = first.expect("one is refused at once").unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains("components of 128 MiB wait for it"), "{error}");
    assert_eq!(waiting.len(), 4);
}

#[tokio::test]
async fn a_plugin_that_cannot_start_is_refused() {
    refused_for(
        Guest::throttler().pages(2000),
        "`throttle.describe`: requested more than 64 MiB of memory",
    )
    .await;
    refused_for(
        Guest::throttler().items("(table 9000000 funcref)"),
        "requested a table of more than 100000 elements",
    )
    .await;
    let start = format!("(func $begin {FOREVER}) (start $begin)");
    refused_for(
        Guest::throttler().items(&start),
        "`throttle.describe`: used more than 250 ms of processor time",
    )
    .await;
    let start = "(func $begin (unreachable)) (start $begin)";
    refused_for(
        Guest::throttler().items(start),
        "`throttle.describe`: trapped in `begin`: wasm trap: wasm `unreachable` instruction executed",
    )
    .await;
}

#[tokio::test]
async fn a_description_has_bounds() {
    refused_for(Guest::throttler().schema("nonsense"), "`config-schema` is not a JSON object")
        .await;
    refused_for(Guest::throttler().group_by(&["a"; 17]), "`group-by` has at most 16 names").await;
    refused_for(
        Guest::throttler().group_by(&[""]),
        "`group-by` has at most 16 names of 1 to 64 bytes",
    )
    .await;
}

/// Within every bound on its parts, and more work for the compiler than a minute is enough for.
fn bomb() -> Guest {
    use std::fmt::Write as _;
    let mut body = format!("(func (param i32) {} ", "(local i32)".repeat(999));
    for turn in 0..20_000 {
        let (read, write) = (1 + turn * 7919 % 999, 1 + turn * 104_729 % 999);
        write!(
            body,
            "(loop (br_if 0 (local.tee {write} (i32.add (local.get 0) (local.get {read})))))"
        )
        .unwrap();
    }
    Guest::throttler().items(&(body + ")"))
}

#[tokio::test]
async fn a_bomb_for_the_compiler_is_ended_in_its_time() {
    let process = Process::new(
        env!("CARGO_BIN_EXE_tidegate"),
        ["compile-plugin", "--processor-seconds", "2"],
    );
    let error = new_host(&<_>::default())
        .compile(bomb().component().into(), &Compiler::Process(process))
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "takes more of the processor's time to compile than it is given");
}

#[tokio::test]
async fn a_starved_compiler_is_stopped_without_blaming_the_plugin() {
    let compiler = Compiler::Process(process().within(Duration::from_millis(100)));
    let error =
        new_host(&<_>::default()).compile(bomb().component().into(), &compiler).await.unwrap_err();
    assert!(matches!(error, CompileError::Failed(_)), "{error}");
}

#[tokio::test]
async fn a_bomb_for_the_compiler_is_ended_when_it_takes_too_much() {
    let process = Process::new(
        env!("CARGO_BIN_EXE_tidegate"),
        ["compile-plugin", "--memory-bytes", "64000000"],
    );
    let compiler = Compiler::Process(process.within(Duration::from_secs(100)));
    let error =
        new_host(&<_>::default()).compile(bomb().component().into(), &compiler).await.unwrap_err();
    assert_eq!(error.to_string(), "takes more memory to compile than it is given");
    // What is no bomb has enough of it.
    new_host(&<_>::default())
        .compile(Guest::throttler().component().into(), &compiler)
        .await
        .unwrap();
}
