//! Makes a component of a core module, whatever compiled it.
//!
//! There are three steps, and the language's own tools may have done each: the module gets the
//! contract (`plugins/wit/plugin.wit`) in the form that an encoder reads, its imports of WASI
//! preview 1 get functions within the component, and the module becomes a component.
//!
//! A plugin has no files and no environment. A language's runtime imports the functions for them all
//! the same, and calls some at its start. Their answers depend on the call alone, so that a recorded
//! call can be repeated: no arguments, no environment, no open files; the time and the random
//! numbers are those of the contract's `clock` and `random`. What is written to the standard output
//! is lost. Functions about files, sockets and waiting return an error. The others, such as the end
//! of the process, trap.

use std::{borrow::Cow, path::Path};

use anyhow::{Context as _, anyhow};
use wasm_encoder::{
    BlockType, CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection,
    ImportSection, InstructionSink, MemArg, MemoryType, Module, TypeSection, ValType,
};
use wasmparser::{CompositeInnerType, FuncType, Parser, Payload, TypeRef};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::{Resolve, WorldId};

use crate::cli::UsageError;
use tidegate_backends::wasm::COMPONENT_BYTES;

/// The contract.
const CONTRACT: &str = include_str!("../../../plugins/wit/plugin.wit");
/// What the functions in place of WASI import of the contract.
const STUBS_WORLD: &str = "world wasi-stubs { import clock; import random; }";
/// The beginning of the names of the contract's interfaces.
const PACKAGE: &str = "tidegate:plugin/";
/// The module of the imports of WASI preview 1.
const WASI: &str = "wasi_snapshot_preview1";
/// The module in which `AssemblyScript` has its `abort`.
const ENV: &str = "env";

/// Makes a component of the core module in `file`.
///
/// # Errors
///
/// The file cannot be read, is no core module, exports no interface of the contract, or imports
/// what plugins are not given.
pub(super) async fn component(file: &Path) -> anyhow::Result<Vec<u8>> {
    let module = super::component(file).await?;
    encode(&module).map_err(|problem| UsageError(format!("{}: {problem:#}", file.display())).into())
}

/// The component of a core module.
pub(super) fn encode(module: &[u8]) -> anyhow::Result<Vec<u8>> {
    if Parser::is_component(module) {
        return Err(anyhow!("it is a component already"));
    }
    if !Parser::is_core_wasm(module) {
        return Err(anyhow!("it is not WebAssembly"));
    }
    let parts = Parts::of(module).context("it is not a well-formed module")?;
    let mut module = Cow::Borrowed(module);
    if !parts.has_contract {
        let (resolve, world) = contract(parts.world()?)?;
        embed_component_metadata(module.to_mut(), &resolve, world, StringEncoding::UTF8)?;
    }
    let mut encoder = ComponentEncoder::default().module(&module)?.validate(true);
    for (name, functions) in parts.stubs()? {
        let mut adapter = adapter(&functions);
        let (resolve, world) = contract("wasi-stubs")?;
        embed_component_metadata(&mut adapter, &resolve, world, StringEncoding::UTF8)?;
        encoder = encoder.adapter(name, &adapter)?;
    }
    let component = encoder.encode().context("it cannot be made a component")?;
    if component.len() > COMPONENT_BYTES {
        let most = COMPONENT_BYTES >> 20;
        return Err(anyhow!("its component has {} bytes; at most {most} MiB", component.len()));
    }
    Ok(component)
}

/// The contract, and its world `name`.
fn contract(name: &str) -> anyhow::Result<(Resolve, WorldId)> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("plugin.wit", &format!("{CONTRACT}\n{STUBS_WORLD}"))?;
    let world = resolve.select_world(&[package], Some(name))?;
    Ok((resolve, world))
}

/// An imported function.
#[derive(Clone, Debug, PartialEq)]
struct Import {
    module: String,
    name: String,
    params: Vec<ValType>,
    results: Vec<ValType>,
}

/// The parts of a core module that decide how it becomes a component.
#[derive(Default)]
struct Parts {
    imports: Vec<Import>,
    exports: Vec<String>,
    /// Whether the language's tools have put the contract into the module.
    has_contract: bool,
}

impl Parts {
    fn of(module: &[u8]) -> anyhow::Result<Self> {
        let (mut parts, mut types) = (Self::default(), Vec::<Option<FuncType>>::new());
        for payload in Parser::new(0).parse_all(module) {
            match payload? {
                Payload::TypeSection(section) => {
                    for group in section {
                        types.extend(group?.into_types().map(
                            |each| match each.composite_type.inner {
                                CompositeInnerType::Func(function) => Some(function),
                                _ => None,
                            },
                        ));
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import?;
                        let TypeRef::Func(number) = import.ty else { continue };
                        let function = types.get(number as usize).and_then(Option::as_ref);
                        let function = function.context("an import has no type")?;
                        parts.imports.push(Import {
                            module: import.module.to_owned(),
                            name: import.name.to_owned(),
                            params: values(function.params())?,
                            results: values(function.results())?,
                        });
                    }
                }
                Payload::ExportSection(section) => {
                    for export in section {
                        parts.exports.push(export?.name.to_owned());
                    }
                }
                Payload::CustomSection(section) => {
                    parts.has_contract |= section.name().starts_with("component-type");
                }
                _ => {}
            }
        }
        Ok(parts)
    }

    /// The world of the contract that the exports make.
    fn world(&self) -> anyhow::Result<&'static str> {
        let exports = |interface: &str| {
            let start = format!("{PACKAGE}{interface}@");
            self.exports.iter().any(|name| name.starts_with(&start))
        };
        let by_column = self.imports.iter().any(|import| {
            import.module.strip_prefix(PACKAGE).is_some_and(|name| name.starts_with("candidates@"))
        });
        match (exports("throttle"), exports("retry"), by_column) {
            (true, true, false) => Ok("both"),
            (true, true, true) => Ok("both-by-column"),
            (true, false, false) => Ok("throttler"),
            (true, false, true) => Ok("throttler-by-column"),
            (false, true, _) => Ok("retry-strategy"),
            (false, false, _) => Err(anyhow!(
                "it exports no function of the contract, such as \
                 {PACKAGE}throttle@0.2.0#decide or {PACKAGE}retry@0.2.0#on-failure"
            )),
        }
    }

    /// The functions that the component gets in place of imports, by the module of the import.
    fn stubs(&self) -> anyhow::Result<Vec<(&'static str, Vec<&Import>)>> {
        let foreign: Vec<String> = self
            .imports
            .iter()
            .filter(|import| {
                let is_abort = import.module == ENV && import.name == "abort";
                !import.module.starts_with(PACKAGE) && import.module != WASI && !is_abort
            })
            .map(|import| format!("{}.{}", import.module, import.name))
            .collect();
        if !foreign.is_empty() {
            let names = foreign.join(", ");
            return Err(anyhow!("it imports what plugins are not given: {names}"));
        }
        let of = |module| self.imports.iter().filter(move |import| import.module == module);
        let differs = |import: &&Import| {
            let same_name =
                |other: &&Import| other.module == import.module && other.name == import.name;
            self.imports.iter().filter(same_name).any(|other| other != *import)
        };
        if let Some(import) = self.imports.iter().find(differs) {
            let (module, name) = (&import.module, &import.name);
            return Err(anyhow!("it imports {module}.{name} with two types"));
        }
        let stubs = [WASI, ENV].map(|module| (module, of(module).collect::<Vec<_>>()));
        Ok(stubs.into_iter().filter(|(_, functions)| !functions.is_empty()).collect())
    }
}

/// The types of parameters or results, which are numbers in all functions of WASI.
fn values(types: &[wasmparser::ValType]) -> anyhow::Result<Vec<ValType>> {
    let number = |of: &wasmparser::ValType| match of {
        wasmparser::ValType::I32 => Ok(ValType::I32),
        wasmparser::ValType::I64 => Ok(ValType::I64),
        wasmparser::ValType::F32 => Ok(ValType::F32),
        wasmparser::ValType::F64 => Ok(ValType::F64),
        other => Err(anyhow!("an import has a parameter or result of type {other}")),
    };
    types.iter().map(number).collect()
}

/// The functions of the contract that an adapter imports, by their numbers in it.
const NOW: u32 = 0;
const RANDOM: u32 = 1;
/// The number of an adapter's first own function.
const FIRST_OWN: u32 = 2;

/// A module with these functions, which shares the memory of the plugin's module.
fn adapter(functions: &[&Import]) -> Vec<u8> {
    let (mut types, mut kinds) = (TypeSection::new(), FunctionSection::new());
    let (mut exports, mut code) = (ExportSection::new(), CodeSection::new());
    let mut imports = ImportSection::new();
    // Both functions of the contract have this type.
    types.ty().function([], [ValType::I64]);
    imports.import("tidegate:plugin/clock@0.2.0", "now", EntityType::Function(0));
    imports.import("tidegate:plugin/random@0.2.0", "next", EntityType::Function(0));
    let mut by_name: Vec<&Import> = functions.to_vec();
    by_name.sort_by(|a, b| a.name.cmp(&b.name));
    by_name.dedup_by(|a, b| a.name == b.name);
    for (number, function) in (0..).zip(by_name) {
        types.ty().function(function.params.iter().copied(), function.results.iter().copied());
        kinds.function(number + 1);
        exports.export(&function.name, ExportKind::Func, number + FIRST_OWN);
        code.function(&body(function));
    }
    let any_memory = MemoryType {
        minimum: 0,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    };
    imports.import("env", "memory", EntityType::Memory(any_memory));
    let mut module = Module::new();
    module.section(&types).section(&imports).section(&kinds).section(&exports).section(&code);
    module.finish()
}

/// Error numbers of WASI preview 1.
const BAD_DESCRIPTOR: i32 = 8;
const NOT_SUPPORTED: i32 = 52;
/// The clock that shows the time of day.
const REALTIME_CLOCK: i32 = 0;
/// What the standard streams are: devices that write characters.
const CHARACTER_DEVICE: i32 = 2;
/// The bytes of what `fd_fdstat_get` writes.
const FDSTAT_BYTES: i32 = 24;

/// The body of a function. One with other parameters than in WASI preview 1 traps.
fn body(import: &Import) -> Function {
    use ValType::{I32, I64};
    // Two local variables more than the parameters.
    let mut function = Function::new([(1, I32), (1, I64)]);
    let mut code = function.instructions();
    let own = import.params.len() as u32;
    let params = import.params.as_slice();
    let returns_number = import.results == [I32];
    match (import.name.as_str(), params) {
        _ if import.module != WASI || !returns_number => {
            code.unreachable();
        }
        // Nothing to return: no arguments, no environment, no other thread.
        ("args_get" | "environ_get", [I32, I32]) | ("sched_yield", []) => {
            code.i32_const(0);
        }
        ("args_sizes_get" | "environ_sizes_get", [I32, I32]) => {
            for place in 0..2 {
                code.local_get(place).i32_const(0).i32_store(at(0, 2));
            }
            code.i32_const(0);
        }
        ("clock_time_get", [I32, I64, I32]) => {
            code.local_get(2).call(NOW).i64_const(1_000_000).i64_mul();
            // One nanosecond more on other clocks: the runtime of Go takes a monotonic clock that
            // shows 0, as in `describe`, for a broken one, and ends.
            code.local_get(0).i32_const(REALTIME_CLOCK).i32_ne().i64_extend_i32_u().i64_add();
            code.i64_store(at(0, 3)).i32_const(0);
        }
        ("clock_res_get", [I32, I32]) => {
            code.local_get(1).i64_const(1_000_000).i64_store(at(0, 3)).i32_const(0);
        }
        ("random_get", [I32, I32]) => random(&mut code, own),
        ("fd_write", [I32, I32, I32, I32]) => written(&mut code, own),
        ("fd_fdstat_get", [I32, I32]) => {
            code.local_get(1).i32_const(0).i32_const(FDSTAT_BYTES).memory_fill(0);
            code.local_get(1).i32_const(CHARACTER_DEVICE).i32_store8(at(0, 0)).i32_const(0);
        }
        (name, _) if name.starts_with("fd_") => {
            code.i32_const(BAD_DESCRIPTOR);
        }
        (name, _) if ["path_", "sock_", "poll_"].iter().any(|start| name.starts_with(start)) => {
            code.i32_const(NOT_SUPPORTED);
        }
        _ => {
            code.unreachable();
        }
    }
    code.end();
    function
}

/// Bytes of the contract's random numbers, eight of each.
fn random(code: &mut InstructionSink<'_>, place: u32) {
    let (buffer, length, number) = (0, 1, place + 1);
    code.block(BlockType::Empty).loop_(BlockType::Empty);
    code.local_get(place).local_get(length).i32_ge_u().br_if(1);
    code.local_get(place).i32_const(7).i32_and().i32_eqz().if_(BlockType::Empty);
    code.call(RANDOM).local_set(number).end();
    code.local_get(buffer).local_get(place).i32_add();
    code.local_get(number).i64_store8(at(0, 0));
    code.local_get(number).i64_const(8).i64_shr_u().local_set(number);
    code.local_get(place).i32_const(1).i32_add().local_set(place);
    code.br(0).end().end().i32_const(0);
}

/// Says that all bytes of a list of buffers were written.
fn written(code: &mut InstructionSink<'_>, sum: u32) {
    let (buffers, count, answer) = (1, 2, 3);
    code.block(BlockType::Empty).loop_(BlockType::Empty);
    code.local_get(count).i32_eqz().br_if(1);
    code.local_get(sum).local_get(buffers).i32_load(at(4, 2)).i32_add().local_set(sum);
    code.local_get(buffers).i32_const(8).i32_add().local_set(buffers);
    code.local_get(count).i32_const(1).i32_sub().local_set(count);
    code.br(0).end().end();
    code.local_get(answer).local_get(sum).i32_store(at(0, 2)).i32_const(0);
}

/// A place in the plugin's memory, aligned to a power of two.
const fn at(offset: u64, align: u32) -> MemArg {
    MemArg { offset, align, memory_index: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin_testing::{Case, Component};
    use tidegate_backends::wasm::compile::Compiler;
    use tidegate_core::{queue::plugin::Role, time::Timestamp};

    /// A throttler as a compiler for WASI makes it. It describes itself only if each function
    /// answers as it should.
    const THROTTLER: &str = r#"(module
        (import "wasi_snapshot_preview1" "fd_write"
            (func $write (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "clock_time_get"
            (func $clock (param i32 i64 i32) (result i32)))
        (import "wasi_snapshot_preview1" "environ_sizes_get"
            (func $environ (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_fdstat_get" (func $stat (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (import "wasi_snapshot_preview1" "new_in_preview_9" (func $new (param f64)))
        (import "env" "abort" (func $abort (param i32 i32 i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "\10\00\00\00\03\00\00\00\20\00\00\00\04\00\00\00")
        (global $first (mut i64) (i64.const 0))
        (func $expect (param i32) (if (i32.eqz (local.get 0)) (then (unreachable))))
        (func (export "_initialize")
            ;; Two buffers of 3 and 4 bytes.
            (call $expect (i32.eqz
                (call $write (i32.const 1) (i32.const 0) (i32.const 2) (i32.const 64))))
            (call $expect (i32.eq (i32.load (i32.const 64)) (i32.const 7)))
            ;; The numbers of the call's sequence, and no further byte.
            (drop (call $random (i32.const 72) (i32.const 12)))
            (global.set $first (i64.load (i32.const 72)))
            (call $expect (i32.ne (i32.load (i32.const 80)) (i32.const 0)))
            (call $expect (i32.eqz (i32.load (i32.const 84))))
            (i64.store (i32.const 96) (i64.const -1))
            (call $expect (i32.eqz (call $clock (i32.const 0) (i64.const 1) (i32.const 96))))
            (call $expect (i32.eqz (call $clock (i32.const 1) (i64.const 1) (i32.const 104))))
            (call $expect (i64.eq (i64.load (i32.const 104))
                (i64.add (i64.load (i32.const 96)) (i64.const 1))))
            (i64.store (i32.const 104) (i64.const -1))
            (call $expect (i32.eqz (call $environ (i32.const 104) (i32.const 108))))
            (call $expect (i64.eqz (i64.load (i32.const 104))))
            (call $expect (i32.eqz (call $stat (i32.const 1) (i32.const 112))))
            (call $expect (i32.eq (i32.load8_u (i32.const 112)) (i32.const 2)))
            (call $expect (i32.eq (call $close (i32.const 3)) (i32.const 8))))
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
        (func (export "tidegate:plugin/throttle@0.2.0#describe") (result i32) (i32.const 256))
        (func (export "tidegate:plugin/throttle@0.2.0#check-config") (param i32 i32) (result i32)
            (if (i32.eq (local.get 1) (i32.const 3)) (then (call $exit (i32.const 1))))
            (if (i32.eq (local.get 1) (i32.const 4)) (then (call $new (f64.const 1))))
            (if (i32.eq (local.get 1) (i32.const 5)) (then
                (call $abort (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))))
            (i32.const 256))
        (func (export "tidegate:plugin/throttle@0.2.0#decide")
            (param i32 i32 i64 i64 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)
            ;; The clock is that of the call, and the seed 0 gives this number first.
            (call $expect (i64.eq (i64.load (i32.const 96))
                (i64.mul (local.get 2) (i64.const 1000000))))
            (call $expect (i64.eq (global.get $first) (i64.const 0xe220a8397b1dcdaf)))
            (i32.const 256)))"#;

    #[test]
    fn a_module_that_imports_candidates_reads_them_by_column() {
        let import = Import {
            module: "tidegate:plugin/candidates@0.2.0".into(),
            name: "count".into(),
            params: Vec::new(),
            results: vec![ValType::I32],
        };
        let exports = vec!["tidegate:plugin/throttle@0.2.0#decide".to_owned()];
        let parts = Parts { imports: vec![import], exports, ..Parts::default() };
        assert_eq!(parts.world().unwrap(), "throttler-by-column");
        assert_eq!(Parts { imports: Vec::new(), ..parts }.world().unwrap(), "throttler");
    }

    #[tokio::test]
    async fn a_module_for_wasi_becomes_a_plugin_that_sees_no_world() {
        let module = wat::parse_str(THROTTLER).unwrap();
        // A linker may import one function twice.
        let again = "(import \"wasi_snapshot_preview1\" \"fd_close\"
            (func (param i32) (result i32)))(import";
        let twice = wat::parse_str(THROTTLER.replacen("(import", again, 1)).unwrap();
        assert!(encode(&twice).is_ok());
        let component = encode(&module).unwrap();
        let plugin =
            Component::compile("it", component.into(), &Compiler::Here, Timestamp::EPOCH).await;
        let plugin = plugin.unwrap();
        let roles: Vec<Role> = plugin.roles().map(|(role, _)| role).collect();
        assert_eq!(roles, [Role::Throttler]);
        assert!(
            plugin.imports.iter().all(|name| name.starts_with(PACKAGE)),
            "{:?}",
            plugin.imports
        );
        assert_eq!(plugin.problems(Role::Throttler, "{}").await, Ok(vec![]));
        let case = |at: i64| {
            let text = format!(r#"{{"name": "a", "role": "throttler", "now": {at}}}"#);
            Case::read(&text).unwrap().remove(0)
        };
        for at in [0, 1_769_846_400_000] {
            let answer = plugin.call(&case(at).call().unwrap()).await;
            assert!(answer.is_ok(), "{at}: {answer:?}");
        }
        for trapping in ["123", "1234", "12345"] {
            let fault = plugin.problems(Role::Throttler, trapping).await.unwrap_err();
            assert!(fault.message.contains("unreachable"), "{fault:?}");
        }
    }

    #[test]
    fn what_cannot_be_a_plugin_is_refused_with_the_reason() {
        let without = |part: &str| THROTTLER.replace(part, "");
        let reason =
            |text: &str| format!("{:#}", encode(&wat::parse_str(text).unwrap()).unwrap_err());
        for (module, part) in [
            ("(component)", "component already"),
            ("(module)", "exports no function of the contract"),
            (
                &THROTTLER.replace("\"env\" \"abort\"", "\"env\" \"emscripten_sleep\""),
                "emscripten_sleep",
            ),
            (&without("(export \"cabi_realloc\")"), "cabi_realloc"),
            (&without("(export \"tidegate:plugin/throttle@0.2.0#decide\")"), "decide"),
            (&without("(export \"memory\")"), "memory"),
            (
                &THROTTLER.replacen(
                    "(import",
                    "(import \"wasi_snapshot_preview1\" \"fd_close\" (func (param i64)))(import",
                    1,
                ),
                "two types",
            ),
        ] {
            let reason = reason(module);
            assert!(reason.contains(part), "{part} in {reason}");
        }
        assert!(encode(b"no module").unwrap_err().to_string().contains("not WebAssembly"));
        assert!(encode(b"\0asm\x01\0\0\0\xff").is_err());
    }
}
