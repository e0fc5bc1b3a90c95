//! Components for tests: one of the contract's worlds around a few lines of WAT.
//!
//! The lines are the bodies of functions with the parameters of the canonical ABI, under the names
//! of the contract; they return the address of their result. [`Guest::throttler`] and
//! [`Guest::retry`] are valid; a test changes one part.

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// The contract.
pub const CONTRACT: &str = include_str!("../../../plugins/wit/plugin.wit");

/// What imports are called in WAT, and their types.
pub const LOG: &str =
    r#"(import "tidegate:plugin/log@0.2.0" "write" (func $log (param i32 i32 i32)))"#;
/// The state's setter: key, value, whether it expires and when, and where the result goes.
pub const SET: &str = r#"(import "tidegate:plugin/state@0.2.0" "set" (func $set (param i32 i32 i32 i32 i32 i64 i32)))"#;
/// The state's getter: key, and where the result goes.
pub const GET: &str =
    r#"(import "tidegate:plugin/state@0.2.0" "get" (func $get (param i32 i32 i32)))"#;
/// The time of the call.
pub const NOW_OF: &str =
    r#"(import "tidegate:plugin/clock@0.2.0" "now" (func $now_of (result i64)))"#;
/// Local time: zone, instant, and where the result goes.
pub const LOCAL: &str =
    r#"(import "tidegate:plugin/clock@0.2.0" "local" (func $local (param i32 i32 i64 i32)))"#;
/// The instant of a local time: zone, the seven fields, and where the result goes.
pub const INSTANT: &str = r#"(import "tidegate:plugin/clock@0.2.0" "instant"
    (func $instant (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))"#;
/// The next random number.
pub const NEXT: &str =
    r#"(import "tidegate:plugin/random@0.2.0" "next" (func $next (result i64)))"#;
/// The number of running jobs.
pub const COUNT: &str =
    r#"(import "tidegate:plugin/running@0.2.0" "count" (func $count (result i32)))"#;
/// The running set by a dimension (its case, and a name for attributes), and where the list goes.
pub const GROUPS: &str =
    r#"(import "tidegate:plugin/running@0.2.0" "groups" (func $groups (param i32 i32 i32 i32)))"#;
/// What waits by an attribute, and where the list goes.
pub const WAITING: &str =
    r#"(import "tidegate:plugin/waiting@0.2.0" "groups" (func $waiting (param i32 i32 i32)))"#;
/// What else waits: where the result goes.
pub const OTHERS: &str =
    r#"(import "tidegate:plugin/waiting@0.2.0" "others" (func $others (param i32)))"#;
/// Running jobs: offset, limit, and where the list goes.
pub const PAGE: &str =
    r#"(import "tidegate:plugin/running@0.2.0" "page" (func $page (param i32 i32 i32)))"#;
/// The number of candidates.
pub const CANDIDATES: &str =
    r#"(import "tidegate:plugin/candidates@0.2.0" "count" (func $offered (result i32)))"#;
/// All candidates: where the two lists go.
pub const PACKED: &str =
    r#"(import "tidegate:plugin/candidates@0.2.0" "packed" (func $packed (param i32)))"#;
/// The weights of the candidates, as the column 0, and where the list goes.
pub const WEIGHTS: &str =
    r#"(import "tidegate:plugin/candidates@0.2.0" "numbers" (func $weights (param i32 i32)))"#;
/// Values of an attribute of the candidates: its name, and where the list goes.
pub const VALUES: &str = r#"(import "tidegate:plugin/candidates@0.2.0" "attribute-values"
    (func $values (param i32 i32 i32)))"#;
/// A job's data: its id, and where the result goes.
pub const DATA: &str =
    r#"(import "tidegate:plugin/jobs@0.2.0" "data" (func $data (param i32 i32 i32)))"#;

/// Never ends. A square root takes one unit of fuel and much time, so that the time of a call is over
/// before its fuel on every machine.
pub const FOREVER: &str = "(loop $forever
    (f64.store (i32.const 4096) (f64.sqrt (f64.sqrt (f64.sqrt (f64.sqrt (f64.sqrt (f64.sqrt (f64.sqrt
        (f64.sqrt (f64.add (f64.load (i32.const 4096)) (f64.const 2))))))))))) (br $forever))
    (unreachable)";

/// A component in the making.
#[derive(Clone)]
pub struct Guest {
    wit: String,
    world: &'static str,
    role: &'static str,
    version: &'static str,
    imports: Vec<&'static str>,
    items: String,
    decide: String,
    on_failure: String,
    check: String,
    describe: String,
    realloc: Option<String>,
    about: &'static str,
    schema: Option<&'static str>,
    waiting_by: Vec<&'static str>,
    state_version: u32,
    group_by: Vec<&'static str>,
    needs: [bool; 4],
    pages: u32,
}

impl Guest {
    /// A throttler that runs everything.
    pub fn throttler() -> Self {
        Self {
            wit: CONTRACT.into(),
            world: "throttler",
            role: "throttle",
            version: "0.2.0",
            imports: Vec::new(),
            items: String::new(),
            decide: "(call $run (local.get $n))".into(),
            // Zeroes are: retry, at the epoch, with nothing replaced.
            on_failure: "(call $alloc (i32.const 96))".into(),
            // No problems.
            check: "(call $alloc (i32.const 8))".into(),
            describe: "(i32.const 256)".into(),
            realloc: None,
            about: "A guest of the tests.",
            schema: None,
            group_by: Vec::new(),
            waiting_by: Vec::new(),
            state_version: 1,
            needs: [false; 4],
            pages: 2,
        }
    }

    /// A retry strategy that tries again at once.
    pub fn retry() -> Self {
        Self { world: "retry-strategy", role: "retry", ..Self::throttler() }
    }

    /// In another world of the contract, or of what is added to it.
    pub fn world(self, world: &'static str, added: &str) -> Self {
        Self { world, wit: format!("{}\n{added}", self.wit), ..self }
    }

    /// Built for another version of the contract.
    pub fn version(self, version: &'static str) -> Self {
        Self { version, wit: self.wit.replace("@0.2.0;", &format!("@{version};")), ..self }
    }

    /// With this import.
    pub fn import(mut self, import: &'static str) -> Self {
        self.imports.push(import);
        self
    }

    /// With other functions, globals, tables, data below the address 65536.
    pub fn items(self, items: &str) -> Self {
        Self { items: items.into(), ..self }
    }

    /// `decide`: has `$now`, `$seed`, `$config` and `$config_len`, `$room`, `$candidates` and `$n`;
    /// locals `$i`, `$p`, `$r`.
    pub fn decide(self, body: &str) -> Self {
        Self { decide: body.into(), ..self }
    }

    /// `on-failure`: has `$args`; locals `$i`, `$p`, `$r`.
    pub fn on_failure(self, body: &str) -> Self {
        Self { on_failure: body.into(), ..self }
    }

    /// `check-config`: has `$config`, `$config_len`; locals `$i`, `$p`, `$r`.
    pub fn check(self, body: &str) -> Self {
        Self { check: body.into(), ..self }
    }

    /// `describe`: the description is at the address 256.
    pub fn describe(self, body: &str) -> Self {
        Self { describe: body.into(), ..self }
    }

    /// The allocator for what the host passes, in place of the valid one: has `$size`.
    pub fn realloc(self, body: &str) -> Self {
        Self { realloc: Some(body.into()), ..self }
    }

    /// With this JSON Schema.
    pub fn schema(self, schema: &'static str) -> Self {
        Self { schema: Some(schema), ..self }
    }

    /// That groups by these attributes.
    pub fn group_by(self, names: &[&'static str]) -> Self {
        Self { group_by: names.to_vec(), ..self }
    }

    /// Without state.
    pub fn stateless(self) -> Self {
        Self { state_version: 0, ..self }
    }

    /// That groups what waits by these attributes.
    pub fn waiting_by(self, names: &[&'static str]) -> Self {
        Self { waiting_by: names.to_vec(), ..self }
    }

    /// That needs running jobs, data, ended attempts.
    pub fn needs(self, running: bool, data: bool, ended: bool) -> Self {
        Self { needs: [running, data, ended, self.needs[3]], ..self }
    }

    /// That needs earlier attempts.
    pub fn needs_earlier(mut self) -> Self {
        self.needs[3] = true;
        self
    }

    /// With a memory of this many pages from the start.
    pub fn pages(self, pages: u32) -> Self {
        Self { pages, ..self }
    }

    /// The core module.
    pub fn module(&self) -> Vec<u8> {
        wat::parse_str(self.wat()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The component.
    pub fn component(&self) -> Vec<u8> {
        let mut module = self.module();
        let mut resolve = Resolve::default();
        let package = resolve.push_str("plugin.wit", &self.wit).unwrap();
        let world = resolve.select_world(&[package], Some(self.world)).unwrap();
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
        ComponentEncoder::default().module(&module).unwrap().validate(true).encode().unwrap()
    }

    fn wat(&self) -> String {
        let Self { role, version, items, decide, on_failure, check, pages, .. } = self;
        let locals = "(local $i i32) (local $p i32) (local $r i32)";
        let main = if *role == "retry" {
            format!(
                r#"(func (export "tidegate:plugin/retry@{version}#on-failure") (param $args i32) (result i32) {locals} {on_failure})"#
            )
        } else {
            format!(
                r#"(func (export "tidegate:plugin/throttle@{version}#decide") (param $queue i32) (param $queue_len i32)
                  (param $now i64) (param $seed i64) (param $config i32) (param $config_len i32) (param $limited i32) (param $limit i32)
                  (param $room i32) (param $ended i32) (param $ended_len i32) (param $candidates i32) (param $n i32) (result i32)
                  {locals} {decide})"#
            )
        };
        let imports = self.imports.concat();
        let (inner, outer) = match &self.realloc {
            None => (r#"(export "cabi_realloc")"#, String::new()),
            Some(body) => (
                "",
                format!(
                    r#"(func (export "cabi_realloc") (param i32 i32 i32) (param $size i32) (result i32) {body})"#
                ),
            ),
        };
        let describe = &self.describe;
        let description = self.description();
        format!(
            r#"(module
              {imports}
              (memory (export "memory") {pages})
              (global $top (mut i32) (i32.const 65536))
              (func $realloc {inner} (param i32 i32 i32) (param $size i32) (result i32) (local $at i32)
                (local.set $at (i32.and (i32.add (global.get $top) (i32.const 7)) (i32.const -8)))
                (global.set $top (i32.add (local.get $at) (local.get $size)))
                (block $enough (loop $grow
                  (br_if $enough (i32.le_u (global.get $top) (i32.mul (memory.size) (i32.const 65536))))
                  (if (i32.lt_s (memory.grow (i32.const 16)) (i32.const 0)) (then (unreachable)))
                  (br $grow)))
                (local.get $at))
              (func $alloc (param $size i32) (result i32) (call $realloc (i32.const 0) (i32.const 0) (i32.const 8) (local.get $size)))
              ;; The answer that runs this many: zeroes are `run` without a reason.
              (func $run (param $n i32) (result i32) (local $list i32) (local $answer i32)
                (local.set $list (call $alloc (i32.mul (local.get $n) (i32.const 40))))
                (local.set $answer (call $alloc (i32.const 16)))
                (i32.store offset=4 (local.get $answer) (local.get $list))
                (i32.store offset=8 (local.get $answer) (local.get $n))
                (local.get $answer))
              ;; The address of the first decision of an answer.
              (func $first (param $answer i32) (result i32) (i32.load offset=4 (local.get $answer)))
              {items}
              (func (export "tidegate:plugin/{role}@{version}#describe") (result i32) {describe})
              {outer}
              (func (export "tidegate:plugin/{role}@{version}#check-config") (param $config i32) (param $config_len i32) (result i32)
                {locals} {check})
              {main}
              {description})"#
        )
    }

    /// The description at the address 256, and its texts behind it.
    fn description(&self) -> String {
        let mut texts: Vec<u8> = Vec::new();
        let mut text = |text: &str| {
            let at = 1024 + texts.len() as u32;
            texts.extend(text.as_bytes());
            [at, text.len() as u32]
        };
        let about = text(self.about);
        let schema = self.schema.map(&mut text);
        let names: Vec<u32> = self.group_by.iter().flat_map(|name| text(name)).collect();
        let waiting: Vec<u32> = self.waiting_by.iter().flat_map(|name| text(name)).collect();
        let mut words = about.to_vec();
        words.push(u32::from(schema.is_some()));
        words.extend(schema.unwrap_or_default());
        words.extend([self.state_version, 320, self.group_by.len() as u32]);
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.extend(self.needs.map(u8::from));
        bytes.extend([700, self.waiting_by.len() as u32].into_iter().flat_map(u32::to_le_bytes));
        let [names, waiting] = [names, waiting]
            .map(|names| names.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
        [(256, bytes), (320, names), (700, waiting), (1024, texts)]
            .map(|(at, bytes)| format!("(data (i32.const {at}) \"{}\")", escaped(&bytes)))
            .concat()
    }
}

/// Bytes as WAT writes them.
fn escaped(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "\\{byte:02x}").unwrap();
        text
    })
}
