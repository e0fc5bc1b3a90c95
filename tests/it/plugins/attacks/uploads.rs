//! Attacks by the bytes of a component.

use std::fmt::Write as _;

use tidegate_backends::wasm::{
    compile::{CompileError, Compiler},
    compile_process::Process,
};

use super::all_are_refused;
use crate::plugins::{
    PATIENCE, Plugged, compiled,
    guest::{FOREVER, Guest},
    new_host, offer,
};

/// A component from its text.
fn text<'a>(attack: &'a str, wat: &str, part: &'a str) -> (&'a str, Vec<u8>, &'a str) {
    let wasm = wat::parse_str(format!("(component {wat})"));
    (attack, wasm.unwrap_or_else(|error| panic!("{attack}: {error}")), part)
}

/// The bytes of a component without sections.
const EMPTY: [u8; 8] = *b"\0asm\x0d\0\x01\0";

#[tokio::test]
async fn uploads_that_are_no_components_are_refused() {
    let valid = Guest::throttler().component();
    let code = compiled(valid.clone()).await.unwrap().code.to_vec();
    assert!(code.starts_with(b"\x7fELF"), "compiled code is an object file");
    let after = |bytes: &[u8]| [&EMPTY[..], bytes].concat();
    let none = "it is not WebAssembly";
    let malformed = "it is not a well-formed component";
    let none_of_it = "it is not a plugin";
    let uploads = [
        ("code that this program compiled", code, none),
        ("a program", b"\x7fELF\x02\x01\x01\0".repeat(100), none),
        ("gzip", [&b"\x1f\x8b\x08\0"[..], &valid].concat(), none),
        ("an archive", [&b"PK\x03\x04"[..], &valid].concat(), none),
        ("a page", b"<!DOCTYPE html><html></html>".to_vec(), none),
        ("text of a component", b"(component)".to_vec(), none),
        ("zeros", vec![0; 1 << 20], none),
        ("the magic number alone", EMPTY[..4].to_vec(), none),
        ("another version", b"\0asm\x0e\0\x01\0".to_vec(), ""),
        ("another layer", b"\0asm\x0d\0\x02\0".to_vec(), ""),
        ("no sections", EMPTY.to_vec(), none_of_it),
        ("a section of no kind", after(b"\x7f\x01\0"), none_of_it),
        ("a section past the end", after(b"\0\x7f"), malformed),
        ("a section of 2^32 bytes", after(b"\x07\xff\xff\xff\xff\x0f"), malformed),
        ("a length that is too long", after(b"\x07\x80\x80\x80\x80\x80\0"), malformed),
        ("2^32 types", after(b"\x07\x05\xff\xff\xff\xff\x0f"), none_of_it),
        ("2^32 imports", after(b"\x0a\x05\xff\xff\xff\xff\x0f"), malformed),
        ("a name of 2^32 bytes", after(b"\0\x05\xff\xff\xff\xff\x0f"), malformed),
        ("a name that is not UTF-8", after(b"\0\x03\x02\xff\xfe"), malformed),
        ("an empty section of types", after(b"\x07\0"), malformed),
        ("bytes behind the end", [&valid[..], b"\xde\xad\xbe\xef"].concat(), malformed),
        ("two components", [&valid[..], &valid[..]].concat(), malformed),
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
    all_are_refused(vec![
        text(
            "an environment",
            r#"(import "wasi:cli/environment@0.2.0"
            (instance))"#,
            "wasi:cli/environment",
        ),
        text("sockets", r#"(import "wasi:sockets/tcp@0.2.0" (instance))"#, "wasi:sockets/tcp"),
        text("a function of its own", r#"(import "env" (func))"#, "env"),
        text("a component to link", r#"(import "lib" (component))"#, "lib"),
        text("a module to link", r#"(import "lib" (core module))"#, "lib"),
        text(
            "a component from an address",
            r#"(import "url=<https://example.com/evil.wasm>" (component))"#,
            "",
        ),
        text("a component by its hash", r#"(import "integrity=<sha256-AAAA>" (component))"#, ""),
        text(
            "an older contract",
            r#"(import "tidegate:plugin/state@0.1.0" (instance))"#,
            "it is built for version 0.1.0",
        ),
        text(
            "an unknown interface",
            r#"(import "tidegate:plugin/files@0.2.0"
            (instance))"#,
            "not in the contract",
        ),
        text(
            "the name of a role without version",
            &format!(
                r#"{instance}
            (export "tidegate:plugin/throttle" (instance $i))"#
            ),
            "",
        ),
        text(
            "a role as a function",
            r#"(core module $m (func (export "f"))) (core instance $i
            (instantiate $m))
            (func $f (canon lift (core func $i "f")))
            (export "tidegate:plugin/throttle@0.2.0" (func $f))"#,
            "",
        ),
        text(
            "another world",
            &format!(
                r#"{instance} (export "other:thing/api@1.0.0"
            (instance $i))"#
            ),
            "it is not a plugin",
        ),
    ])
    .await;
}

#[tokio::test]
async fn proposals_beyond_the_engine_s_settings_are_refused() {
    let module =
        |attack: &'static str, wat: &str| text(attack, &format!("(core module {wat})"), "");
    all_are_refused(vec![
        module("threads", "(memory 1 1 shared)"),
        module("atomics", "(memory 1) (func (drop (i32.atomic.load (i32.const 0))))"),
        module("64-bit memories", "(memory i64 1)"),
        module("64-bit tables", "(table i64 1 funcref)"),
        module(
            "relaxed SIMD",
            "(func (param v128) (result v128) (i8x16.relaxed_swizzle
            (local.get 0) (local.get 0)))",
        ),
        module(
            "wide arithmetic",
            "(func (param i64) (result i64 i64) (i64.add128 (local.get 0)
            (local.get 0) (local.get 0) (local.get 0)))",
        ),
        module("small pages", "(memory 1 (pagesize 1))"),
        module(
            "garbage collection",
            "(type $s (struct (field i32))) (func (drop
            (struct.new_default $s)))",
        ),
        module("exceptions", "(tag $e) (func (throw $e))"),
        module("continuations", "(type $f (func)) (type $c (cont $f)) (func (param (ref $c)))"),
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
    // Each component has the one before in its only section.
    let mut nested = EMPTY.to_vec();
    for _ in 0..2000 {
        let mut section = vec![4];
        let mut len = nested.len();
        while len > 0x7f {
            section.push(len as u8 | 0x80);
            len >>= 7;
        }
        section.push(len as u8);
        nested = [&EMPTY[..], &section, &nested].concat();
    }
    let mut types = "(type $t0 (tuple u8 u8))".to_owned();
    for level in 1..40 {
        let inner = level - 1;
        write!(types, "(type $t{level} (tuple $t{inner} $t{inner}))").unwrap();
    }
    let mut instances = "(component $c0)".to_owned();
    for level in 1..30 {
        let inner = level - 1;
        write!(
            instances,
            "(component $c{level} (alias outer 1 $c{inner} (component $in)) (instance
                (instantiate $in)) (instance (instantiate $in)))"
        )
        .unwrap();
    }
    let module = |wat: &str| format!("(core module {wat})");
    all_are_refused(vec![
        text("200,000 functions", &module(&many("(func)", 200_000)), "at most 30000 are taken"),
        text(
            "30,001 functions in many modules",
            &many(&module(&many("(func)", 3001)), 10),
            "at most 30000 are taken",
        ),
        text(
            "50,000 locals",
            &module(&format!("(func (local {}))", many("i64 ", 49_999))),
            "at most 1000 are taken",
        ),
        text(
            "1001 locals",
            &module(&format!("(func (local {}))", many("i64 ", 1001))),
            "at most 1000 are taken",
        ),
        text("1001 parameters", &module(&format!("(func (param {}))", many("i64 ", 1001))), ""),
        text(
            "1001 results",
            &module(&format!("(type (func (result {})))", many("i64 ", 1001))),
            "",
        ),
        text("200 memories", &module(&many("(memory 1)", 200)), ""),
        text("200 tables", &module(&many("(table 1 funcref)", 200)), ""),
        text("a memory of 4 GiB and a page", &module("(memory 65537)"), ""),
        text(
            "a function that is nested deeply",
            &module(&format!("(func {}{})", many("block ", 300_000), many("end ", 300_000))),
            "at most 524288",
        ),
        ("components in components", nested, ""),
        text("types that double", &types, ""),
        text("instances that double", &instances, ""),
        text(
            "1000 instances",
            &format!("{} {}", module("$m"), many("(core instance (instantiate $m))", 1001)),
            "",
        ),
        text(
            "100,000 exports of one type",
            &format!(
                "(type $t u8) {}",
                (0..100_001).fold(String::new(), |mut all, n| {
                    write!(all, "(export \"e{n}\" (type $t))").unwrap();
                    all
                })
            ),
            "",
        ),
        text("a name of 200,000 bytes", &format!("(import \"{}\" (func))", many("a", 200_000)), ""),
        text("one name twice", r#"(type $t u8) (export "a" (type $t)) (export "A" (type $t))"#, ""),
    ])
    .await;
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
            "took longer than 250 ms",
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
