//! Attacks by the bytes of a component.

use std::fmt::Write as _;

use tidegate_backends::wasm::{
    compile::{CompileError, Compiler},
    compile_process::Process,
};
use wasm_encoder::{RawSection, Section as _};

use super::{NO_ROLE, Upload, all_are_refused};
use crate::plugins::{
    PATIENCE, Plugged, compiled,
    guest::{FOREVER, Guest},
    new_host, offer,
};

/// The bytes of a component without sections.
const EMPTY: [u8; 8] = *b"\0asm\x0d\0\x01\0";

/// The kind of a section that is a core module.
const MODULE: u8 = 1;
/// The kind of a section that is a component.
const COMPONENT: u8 = 4;

/// The export of a role without its functions. A component with it passes the inspection, and the
/// engine compiles it.
const ROLE: &str = r#"(component $none) (instance $role (instantiate $none))
    (export "tidegate:plugin/throttle@0.2.0" (instance $role))"#;

/// The bytes of a module or a component.
fn parsed(attack: &str, wat: &str) -> Vec<u8> {
    wat::parse_str(wat).unwrap_or_else(|error| panic!("{attack}: {error}"))
}

/// A component from its text.
fn text<'a>(attack: &'a str, wat: &str, part: &'a str) -> Upload<'a> {
    (attack, parsed(attack, &format!("(component {wat})")), part)
}

/// `component` with another section behind its own ones.
fn with_section(component: &[u8], kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = component.to_vec();
    RawSection { id: kind, data: content }.append_to(&mut bytes);
    bytes
}

/// A valid plugin with another section. Nothing else in it is a reason to refuse it.
fn plugin_with(kind: u8, content: &[u8]) -> Vec<u8> {
    with_section(&Guest::throttler().component(), kind, content)
}

/// A valid plugin with another core module.
fn module<'a>(attack: &'a str, wat: &str, part: &'a str) -> Upload<'a> {
    let content = parsed(attack, &format!("(module {wat})"));
    (attack, plugin_with(MODULE, &content), part)
}

/// A valid plugin with another component in it.
fn inner<'a>(attack: &'a str, wat: &str, part: &'a str) -> Upload<'a> {
    let content = parsed(attack, &format!("(component {wat})"));
    (attack, plugin_with(COMPONENT, &content), part)
}

/// A component that contains another one, which contains another one, this many in all.
fn nested(levels: usize) -> Vec<u8> {
    (0..levels).fold(EMPTY.to_vec(), |inner, _| with_section(&EMPTY, COMPONENT, &inner))
}

/// The components `$c0` to `$c29`, each with two instances of the one before.
fn doubling() -> String {
    let mut components = "(component $c0)".to_owned();
    for level in 1..30 {
        let inner = level - 1;
        write!(
            components,
            "(component $c{level} (alias outer 1 $c{inner} (component $in)) (instance
                (instantiate $in)) (instance (instantiate $in)))"
        )
        .unwrap();
    }
    components
}

#[tokio::test]
async fn uploads_that_are_no_components_are_refused() {
    let valid = Guest::throttler().component();
    let code = compiled(valid.clone()).await.unwrap().code.to_vec();
    assert!(code.starts_with(b"\x7fELF"), "compiled code is an object file");
    let after = |bytes: &[u8]| [&valid[..], bytes].concat();
    let none = "it is not WebAssembly";
    let malformed = "it is not a well-formed component";
    let uploads = [
        ("code that this program compiled", code, none),
        ("a program", b"\x7fELF\x02\x01\x01\0".repeat(100), none),
        ("gzip", [&b"\x1f\x8b\x08\0"[..], &valid].concat(), none),
        ("an archive", [&b"PK\x03\x04"[..], &valid].concat(), none),
        ("a page", b"<!DOCTYPE html><html></html>".to_vec(), none),
        ("text of a component", b"(component)".to_vec(), none),
        ("zeros", vec![0; 1 << 20], none),
        ("the magic number alone", EMPTY[..4].to_vec(), none),
        ("another version", b"\0asm\x0e\0\x01\0".to_vec(), none),
        ("another layer", b"\0asm\x0d\0\x02\0".to_vec(), none),
        ("no sections", EMPTY.to_vec(), NO_ROLE),
        ("a section of no kind", after(b"\x7f\x01\0"), "malformed section id: 127"),
        ("a section past the end", after(b"\0\x7f"), malformed),
        ("a section of 2^32 bytes", after(b"\x07\xff\xff\xff\xff\x0f"), malformed),
        ("a length that is too long", after(b"\x07\x80\x80\x80\x80\x80\0"), malformed),
        ("2^32 types", after(b"\x07\x05\xff\xff\xff\xff\x0f"), "types count exceeds limit"),
        ("2^32 imports", after(b"\x0a\x05\xff\xff\xff\xff\x0f"), malformed),
        ("a name of 2^32 bytes", after(b"\0\x05\xff\xff\xff\xff\x0f"), malformed),
        ("a name that is not UTF-8", after(b"\0\x03\x02\xff\xfe"), malformed),
        ("an empty section of types", after(b"\x07\0"), malformed),
        ("bytes behind the end", after(b"\xde\xad\xbe\xef"), malformed),
        ("two components", after(&valid), malformed),
    ];
    all_are_refused(uploads.into()).await;
}

#[tokio::test]
async fn a_component_cut_off_anywhere_is_refused() {
    let valid = Guest::throttler().component();
    for len in (0..valid.len()).step_by(7) {
        // What is cut off at last are sections with names, without which it is whole.
        let is_whole = || wasmparser::Validator::new().validate_all(&valid[..len]).is_ok();
        match compiled(valid[..len].to_vec()).await {
            Err(error) => assert!(matches!(error, CompileError::Refused(_)), "{len}: {error}"),
            Ok(_) => assert!(is_whole(), "{len} bytes"),
        }
    }
}

#[tokio::test]
async fn imports_and_exports_of_other_worlds_are_refused() {
    let instance = "(component $c) (instance $i (instantiate $c))";
    let import = |attack: &'static str, import: &str, part: &'static str| {
        text(attack, &format!("(import {import}) {ROLE}"), part)
    };
    let foreign = "it imports what plugins are not given: ";
    let wasi = "it imports WASI, which plugins are not given";
    all_are_refused(vec![
        import("an environment", r#""wasi:cli/environment@0.2.0" (instance)"#, wasi),
        import("sockets", r#""wasi:sockets/tcp@0.2.0" (instance)"#, wasi),
        import("a function of its own", r#""env" (func)"#, foreign),
        import("a component to link", r#""lib" (component)"#, foreign),
        import("a module to link", r#""lib" (core module)"#, foreign),
        import(
            "a component from an address",
            r#""url=<https://example.com/evil.wasm>" (component)"#,
            foreign,
        ),
        import("a component by its hash", r#""integrity=<sha256-AAAA>" (component)"#, foreign),
        import(
            "an older contract",
            r#""tidegate:plugin/state@0.1.0" (instance)"#,
            "it is built for version 0.1.0",
        ),
        import(
            "an unknown interface",
            r#""tidegate:plugin/files@0.2.0" (instance)"#,
            "not in the contract",
        ),
        text(
            "the name of a role without version",
            &format!(r#"{instance} (export "tidegate:plugin/throttle" (instance $i))"#),
            "it exports tidegate:plugin/throttle: it is built for no version of the contract",
        ),
        text(
            "a role as a function",
            r#"(core module $m (func (export "f"))) (core instance $i
            (instantiate $m))
            (func $f (canon lift (core func $i "f")))
            (export "tidegate:plugin/throttle@0.2.0" (func $f))"#,
            "exports an interface of the contract without its functions",
        ),
        text(
            "another world",
            &format!(r#"{instance} (export "other:thing/api@1.0.0" (instance $i))"#),
            NO_ROLE,
        ),
    ])
    .await;
}

/// Every part is from a message of the engine: the inspection before it refuses none of these.
#[tokio::test]
async fn proposals_beyond_the_engine_s_settings_are_refused() {
    let asynchronous = "requires the component model async feature";
    all_are_refused(vec![
        module("threads", "(memory 1 1 shared)", "threads must be enabled for shared memories"),
        module(
            "atomics",
            "(memory 1) (func (drop (i32.atomic.load (i32.const 0))))",
            "threads support is not enabled",
        ),
        module(
            "shared globals",
            "(global (shared i32) (i32.const 0))",
            "require the shared-everything-threads proposal",
        ),
        module("64-bit memories", "(memory i64 1)", "memory64 must be enabled"),
        module("64-bit tables", "(table i64 1 funcref)", "memory64 must be enabled"),
        module(
            "relaxed SIMD",
            "(func (param v128) (result v128) (i8x16.relaxed_swizzle
            (local.get 0) (local.get 0)))",
            "relaxed SIMD support is not enabled",
        ),
        module(
            "wide arithmetic",
            "(func (param i64) (result i64 i64) (i64.add128 (local.get 0)
            (local.get 0) (local.get 0) (local.get 0)))",
            "wide arithmetic support is not enabled",
        ),
        module("small pages", "(memory 1 (pagesize 1))", "custom page sizes proposal must be"),
        module(
            "garbage collection",
            "(type $s (struct (field i32))) (func (drop
            (struct.new_default $s)))",
            "gc types are disabled",
        ),
        module("references of the host", "(func (param externref))", "gc types are disallowed"),
        module("exceptions", "(tag $e) (func (throw $e))", "exceptions proposal not enabled"),
        module(
            "older exceptions",
            "(func try catch_all end)",
            "legacy_exceptions feature required",
        ),
        module(
            "continuations",
            "(type $f (func)) (type $c (cont $f)) (func (param (ref $c)))",
            "stack switching is disabled",
        ),
        inner("futures", "(type (future u8))", asynchronous),
        inner("streams", "(type (stream u8))", asynchronous),
        inner(
            "threads of components",
            "(core func (canon thread.index))",
            "requires the component model threading feature",
        ),
        inner(
            "contexts of errors",
            "(type error-context)",
            "requires the component model error-context feature",
        ),
        inner(
            "lists of a fixed length",
            "(type (list u8 4))",
            "require the component model fixed-length lists feature",
        ),
        inner("maps", "(type (map u8 u8))", "require the component model map feature"),
    ])
    .await;
}

#[tokio::test]
async fn allowed_proposals_run_within_the_bounds() {
    for (attack, items, body) in [
        (
            "SIMD",
            "",
            "(drop (i32x4.extract_lane 0 (i32x4.add (v128.const i32x4 1 2 3 4)
                (v128.const i32x4 1 2 3 4))))",
        ),
        ("several memories", "(memory $more 1)", "(i32.store $more (i32.const 0) (i32.const 1))"),
        (
            "tail calls",
            "(func $back (param i32) (result i32) (if (result i32) (local.get 0) (then
                (return_call $back (i32.sub (local.get 0) (i32.const 1)))) (else (i32.const 0))))",
            "(drop (call $back (i32.const 100000)))",
        ),
        ("bulk memory", "", "(memory.copy (i32.const 4096) (i32.const 8192) (i32.const 100))"),
        ("saturating numbers", "", "(drop (i32.trunc_sat_f64_s (f64.const nan)))"),
        (
            "several results",
            "(func $two (result i32 i32) (i32.const 1) (i32.const 2))",
            "(call $two) (drop) (drop)",
        ),
        (
            "references to functions of a type",
            "(type $seven (func (result i32))) (func $seven (type $seven) (i32.const 7))
                (elem declare func $seven)",
            "(drop (call_ref $seven (ref.func $seven)))",
        ),
        ("constants that are computed", "(global i32 (i32.add (i32.const 1) (i32.const 2)))", ""),
    ] {
        let guest = Guest::throttler().items(items);
        let plugged =
            Plugged::new(guest.decide(&format!("{body} (call $run (local.get $n))"))).await;
        let answer = plugged.throttle(offer(3, 0)).await;
        assert!(answer.is_ok(), "{attack}: {answer:?}");
    }
}

#[tokio::test]
async fn numbers_of_parts_have_bounds() {
    let many = |part: &str, count: usize| part.repeat(count);
    let mut types = "(type $t0 (tuple u8 u8))".to_owned();
    for level in 1..40 {
        let inner = level - 1;
        write!(types, "(type $t{level} (tuple $t{inner} $t{inner}))").unwrap();
    }
    let functions = "at most 30000 are taken";
    let locals = "at most 1000 are taken";
    all_are_refused(vec![
        module("200,000 functions", &many("(func)", 200_000), functions),
        inner(
            "30,010 functions in many modules",
            &many(&format!("(core module {})", many("(func)", 3001)), 10),
            functions,
        ),
        module("49,999 locals", &format!("(func (local {}))", many("i64 ", 49_999)), locals),
        module("1001 locals", &format!("(func (local {}))", many("i64 ", 1001)), locals),
        module(
            "1001 parameters",
            &format!("(func (param {}))", many("i64 ", 1001)),
            "function params size is out of bounds",
        ),
        module(
            "1001 results",
            &format!("(type (func (result {})))", many("i64 ", 1001)),
            "function returns size is out of bounds",
        ),
        module("200 memories", &many("(memory 1)", 200), "memories count exceeds limit of 100"),
        module("200 tables", &many("(table 1 funcref)", 200), "tables count exceeds limit of 100"),
        module("a memory of 4 GiB and a page", "(memory 65537)", "memory size must be at most"),
        module(
            "a function that is nested deeply",
            &format!("(func {}{})", many("block ", 300_000), many("end ", 300_000)),
            "at most 524288",
        ),
        inner("types that double", &types, "effective type size exceeds the limit"),
        inner(
            "1001 instances",
            &format!("(core module $m) {}", many("(core instance (instantiate $m))", 1001)),
            "instances count exceeds limit of 1000",
        ),
        inner(
            "a name of 200,000 bytes",
            &format!("(import \"{}\" (func))", many("a", 200_000)),
            "string size out of bounds",
        ),
        inner(
            "one name twice",
            r#"(type $t u8) (export "a" (type $t)) (export "A" (type $t))"#,
            "conflicts with previous name",
        ),
    ])
    .await;
}

/// The size of the upload bounds these parts. The engine makes no code for a component that nothing
/// instantiates, and all exports of a type refer to one definition.
#[tokio::test]
async fn parts_that_cost_the_compiler_little_are_accepted() {
    let exports = (0..100_001).fold("(type $t u8)".to_owned(), |mut all, n| {
        write!(all, "(export \"e{n}\" (type $t))").unwrap();
        all
    });
    for (attack, content) in [
        ("29 components in components", nested(29)),
        ("unused components", parsed("unused", &format!("(component {})", doubling()))),
        ("100,001 exports of one type", parsed("exports", &format!("(component {exports})"))),
    ] {
        let outcome = compiled(plugin_with(COMPONENT, &content)).await;
        assert!(outcome.is_ok(), "{attack}: {:?}", outcome.err());
    }
}

/// A component with definitions of about this many bytes, and this many instances of it.
fn repeated(bytes: usize, times: usize) -> String {
    format!(
        "(type $t u8) (component $large {}) {}",
        "(alias outer 1 $t (type))".repeat(bytes / 4),
        "(instance (instantiate $large))".repeat(times)
    )
}

/// Small uploads for which the engine would need gigabytes, because it repeats the definitions of a
/// component for each of its instances.
#[tokio::test]
async fn parts_that_grow_are_refused_before_they_are_compiled() {
    let process = Process::new(
        env!("CARGO_BIN_EXE_tidegate"),
        ["compile-plugin", "--memory-bytes", "256000000"],
    );
    let compiler = Compiler::Process(process);
    let host = new_host(&<_>::default());
    let nesting = "nested more than 32 levels deep";
    let instances = "it makes more than 1000 instances of components and core modules";
    let definitions = "the definitions in all instances of its components take";
    let unknown = "only components that are defined in it are taken";
    let component = |attack: &str, wat: &str| parsed(attack, &format!("(component {wat} {ROLE})"));
    let doubled = format!("{} (instance (instantiate $c29))", doubling());
    // 10 times 100 instances, and those 10.
    let product = format!(
        "(component $a) (component $b (alias outer 1 $a (component $in)) {}) {}",
        "(instance (instantiate $in))".repeat(100),
        "(instance (instantiate $b))".repeat(10)
    );
    let modules = format!(
        "(component $b (core module $m) {}) {}",
        "(core instance (instantiate $m))".repeat(500),
        "(instance (instantiate $b))".repeat(2)
    );
    let exported = "(component $c (component $in) (export \"c\" (component $in)))
        (instance $i (instantiate $c)) (alias export $i \"c\" (component $d))
        (instance (instantiate $d))";
    for (attack, wasm, part) in [
        ("2^30 instances", component("doubling", &doubled), instances),
        ("1010 instances", component("product", &product), instances),
        ("1002 instances of modules", component("modules", &modules), instances),
        ("900 large instances", component("large", &repeated(4000, 900)), definitions),
        ("a component from an instance", component("exported", exported), unknown),
        ("33 levels", plugin_with(COMPONENT, &nested(32)), nesting),
        ("10,001 levels", plugin_with(COMPONENT, &nested(10_000)), nesting),
    ] {
        let error = host.compile(wasm.into(), &compiler).await.expect_err(attack);
        assert!(matches!(error, CompileError::Refused(_)), "{attack}: {error}");
        assert!(error.to_string().contains(part), "{attack}: {error}");
    }
    // What is at the bounds has enough memory. It fails for its role, which has no functions.
    for (parts, wasm) in [
        ("990 instances", component("bound", &repeated(1000, 990))),
        ("99 large instances", component("bound", &repeated(10_000, 99))),
    ] {
        let error = host.compile(wasm.into(), &compiler).await.expect_err(parts);
        let wanted = "without its functions";
        assert!(error.to_string().contains(wanted), "{parts}: {error}");
    }
    let valid = Guest::throttler().component();
    host.compile(valid.into(), &compiler).await.unwrap();
}

#[tokio::test]
async fn large_parts_fail_when_the_push_calls_describe() {
    let guest = |items: &str| Guest::throttler().items(items).component();
    let memory = "more than 64 MiB of memory";
    all_are_refused(vec![
        ("17 tables", guest(&"(table 1 funcref)".repeat(17)), "table count too high"),
        (
            "a table of 2^32 elements",
            guest("(table 4294967295 funcref)"),
            "more than 100000 elements",
        ),
        ("5 memories", guest(&"(memory 64)".repeat(4)), "memory count too high"),
        ("a memory of 4 GiB", guest("(memory $more 65536)"), memory),
        ("4 memories of 32 MiB", guest(&"(memory 512)".repeat(3)), memory),
        (
            "a start function that loops",
            guest(&format!("(func $begin {FOREVER}) (start $begin)")),
            "used more than 250 ms of processor time",
        ),
        (
            "a start function that recurses",
            guest("(func $begin (call $begin)) (start $begin)"),
            "512 KiB of stack",
        ),
        ("data behind the memory", guest(r#"(data (i32.const -4) "12345678")"#), "out of bounds"),
        (
            "elements behind the table",
            guest("(table 1 funcref) (elem (i32.const 9) $alloc)"),
            "out of bounds",
        ),
    ])
    .await;
}

/// The compiler's worst cases in the compiler of the server, with its bounds.
#[tokio::test]
#[ignore = "takes minutes: the full check runs it"]
#[allow(clippy::disallowed_methods, reason = "what is measured is a real process")]
async fn worst_cases_of_the_compiler_end_within_its_bounds() {
    let process = Process::new(env!("CARGO_BIN_EXE_tidegate"), ["compile-plugin"]);
    let functions = |count: usize, body: &str| Guest::throttler().items(&body.repeat(count));
    let mut values = format!("(func (param i32) {} ", "(local i32)".repeat(990));
    for turn in 0..20_000 {
        let (read, write) = (1 + turn * 7919 % 990, 1 + turn * 104_729 % 990);
        write!(
            values,
            "(loop (br_if 0 (local.tee {write} (i32.add (local.get 0) (local.get {read})))))"
        )
        .unwrap();
    }
    values.push(')');
    let blocks = format!("(func {}{})", "block ".repeat(100_000), "end ".repeat(100_000));
    let targets =
        format!("(func (param i32) (block (br_table {} (local.get 0))))", "0 ".repeat(100_000));
    for (attack, guest) in [
        (
            "29,000 functions",
            functions(
                29_000,
                "(func (param i32) (result i32) (i32.mul (i32.add (local.get 0) (i32.const 3))
                    (i32.xor (local.get 0) (i32.const 5))))",
            ),
        ),
        ("990 live values", Guest::throttler().items(&values)),
        ("100,000 blocks", Guest::throttler().items(&blocks)),
        ("a jump with 100,000 targets", Guest::throttler().items(&targets)),
    ] {
        let start = std::time::Instant::now();
        let compiler = Compiler::Process(process.clone());
        let outcome = new_host(&<_>::default()).compile(guest.component().into(), &compiler).await;
        let took = start.elapsed();
        assert!(took < PATIENCE * 60, "{attack}: {took:?}");
        assert!(!matches!(outcome, Err(CompileError::Failed(_))), "{attack}: {:?}", outcome.err());
    }
}
