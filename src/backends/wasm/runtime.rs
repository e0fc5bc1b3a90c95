//! The engine that runs all plugins: its settings, the imports, and the limit of their time.
//!
//! The engine loads code only if it was compiled with the settings of [`config`]. Therefore the
//! compiling and the running side share this function, and [`ENGINE`] is recorded with the code.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use nix::time::{ClockId, clock_gettime};
use parking_lot::{Condvar, Mutex};
use sha2::{Digest, Sha256};
use wasmtime::{
    Config, Engine, ModuleVersionStrategy, Store, Trap, UpdateDeadline,
    component::{Component, HasSelf, Linker},
};

use super::{
    bounds,
    contract::{
        retry::RetryStrategyPre,
        throttler::{ThrottlerByColumn, ThrottlerByColumnPre},
    },
    guest::Guest,
};
use tidegate_core::port::policy::{Fault, FaultKind};

/// The engine and its settings, recorded with compiled code. Raise the number after the slash with
/// every change of [`config`] that affects code.
///
/// By default the engine records only its major version, so a fix of the compiler would not reach
/// older code. With this version, the code is recompiled.
pub const ENGINE: &str = "wasmtime 48.0.8/1";

/// The target triple of the code that this program can load.
pub const TARGET: &str = if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
    "x86_64-unknown-linux-gnu"
} else if cfg!(all(target_os = "linux", target_arch = "aarch64")) {
    "aarch64-unknown-linux-gnu"
} else if cfg!(all(target_os = "macos", target_arch = "x86_64")) {
    "x86_64-apple-darwin"
} else if cfg!(all(target_os = "macos", target_arch = "aarch64")) {
    "aarch64-apple-darwin"
} else {
    "a machine for which plugins are not compiled"
};

/// The beginning of the name of the import by which a throttler reads its candidates by column.
const CANDIDATES: &str = "tidegate:plugin/candidates@";

/// The settings of the engine, for the compiling and the running side.
pub(super) fn config() -> Config {
    let mut config = Config::new();
    config.consume_fuel(true).epoch_interruption(true);
    config.max_wasm_stack(bounds::STACK);
    config.generate_address_map(false).wasm_backtrace_max_frames(NonZeroUsize::new(16));
    config.wasm_memory64(false).wasm_relaxed_simd(false);
    config
        .module_version(ModuleVersionStrategy::Custom(ENGINE.into()))
        .expect("the version is short enough");
    config
}

/// A compiled plugin, ready to be called.
pub(super) struct Loaded {
    /// The throttler, if it is one.
    pub throttler: Option<ThrottlerByColumnPre<Guest>>,
    /// Whether it imports `candidates`, and reads the candidates by column.
    pub by_column: bool,
    /// The retry strategy, if it is one.
    pub retry: Option<RetryStrategyPre<Guest>>,
    /// The size of its code in bytes.
    pub bytes: usize,
}

/// Runs guests, each in a new store that is dropped after its call.
pub(super) struct Runtime {
    engine: Engine,
    linker: Linker<Guest>,
    watch: Arc<Watch>,
}

impl Runtime {
    pub(super) fn new() -> wasmtime::Result<Self> {
        #[cfg_attr(
            not(feature = "compiler"),
            expect(unused_mut, reason = "only a build with the compiler changes it")
        )]
        let mut config = config();
        // It runs only precompiled code, so a compiler would waste memory.
        #[cfg(feature = "compiler")]
        config.enable_compiler(false);
        let engine = Engine::new(&config)?;
        let mut linker = Linker::new(&engine);
        // This world has all imports.
        ThrottlerByColumn::add_to_linker::<Guest, HasSelf<Guest>>(&mut linker, |guest| guest)?;
        let watch = Arc::new(Watch::default());
        let (watching, engine_of) = (Arc::clone(&watch), engine.weak());
        let tick = move || engine_of.upgrade().map(|engine| engine.increment_epoch()).is_some();
        std::thread::Builder::new()
            .name("plugin-watch".into())
            .spawn(move || watching.run(tick))
            .map_err(wasmtime::Error::new)?;
        Ok(Self { engine, linker, watch })
    }

    /// Loads `code`, if its hash is `sha256`.
    pub(super) fn load(&self, code: &[u8], sha256: &str) -> Result<Loaded, Fault> {
        let unavailable = |message: String| Fault { kind: FaultKind::Unavailable, message };
        if hex(&Sha256::digest(code)) != sha256 {
            return Err(unavailable(
                "its compiled code is not what was compiled; push the plugin again".into(),
            ));
        }
        // SAFETY: the engine trusts these bytes, so their origin must be trusted. The compiler of
        // this project wrote them. On a server their hash is in the plugin's record, which only the
        // trusted side writes. The code of an author's command was compiled by it, or is from a
        // file and a folder that only this user may write (`kept_code`).
        #[allow(unsafe_code, reason = "the hash above proves the origin of the code")]
        let component = unsafe { Component::deserialize(&self.engine, code) };
        let component = component.map_err(|error| {
            unavailable(format!("its compiled code cannot be loaded: {error:#}"))
        })?;
        let pre = self
            .linker
            .instantiate_pre(&component)
            .map_err(|error| unavailable(format!("{error:#}")))?;
        // The exports alone decide which roles it has.
        let throttler = ThrottlerByColumnPre::new(pre.clone()).ok();
        let retry = RetryStrategyPre::new(pre).ok();
        let parts = component.component_type();
        let by_column = parts.imports(&self.engine).any(|(name, _)| name.starts_with(CANDIDATES));
        Ok(Loaded { throttler, by_column, retry, bytes: code.len() })
    }

    /// Runs `call` within the bounds in a new store, which has the usage afterwards.
    pub(super) fn call<R>(
        &self,
        guest: Guest,
        call: impl FnOnce(&mut Store<Guest>) -> wasmtime::Result<R>,
    ) -> (wasmtime::Result<R>, Store<Guest>) {
        let mut store = Store::new(&self.engine, guest);
        store.limiter(|guest| &mut guest.limiter);
        store.set_fuel(bounds::FUEL).expect("the engine counts fuel");
        store.set_hostcall_fuel(bounds::OUTPUT);
        let begun = processor_time();
        store.set_epoch_deadline(ticks(bounds::TIME));
        store.epoch_deadline_callback(move |_| {
            let used = begun.zip(processor_time()).map(|(begun, now)| now.saturating_sub(begun));
            match used.and_then(|used| bounds::TIME.checked_sub(used)) {
                Some(left) => Ok(UpdateDeadline::Continue(ticks(left))),
                None => Err(Trap::Interrupt.into()),
            }
        });
        let watched = self.watch.watch();
        let outcome = call(&mut store);
        drop(watched);
        (outcome, store)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.watch.state.lock().over = true;
        self.watch.wake.notify_all();
    }
}

/// Bytes as hexadecimal text.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Interval at which the time of calls is checked.
const TICK: Duration = Duration::from_millis(25);

/// Returns the ticks after which `time` may be over, at least one.
fn ticks(time: Duration) -> u64 {
    time.as_millis().div_ceil(TICK.as_millis()).max(1) as u64
}

/// Returns the processor time of this thread, or nothing if the system does not say.
///
/// A call is limited by it and not by the time of a clock: a busy machine must neither fail a good
/// plugin nor change the report of a simulation.
fn processor_time() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Duration::from)
}

/// Counts ticks while calls run, and sleeps otherwise. Time in which the process does not run, such
/// as that of a frozen function, does not count.
#[derive(Default)]
struct Watch {
    state: Mutex<WatchState>,
    wake: Condvar,
}

#[derive(Default)]
struct WatchState {
    calls: usize,
    asleep: bool,
    over: bool,
}

struct WatchedCall<'a>(&'a Watch);

impl Watch {
    fn watch(&self) -> WatchedCall<'_> {
        let mut state = self.state.lock();
        state.calls += 1;
        if state.asleep {
            self.wake.notify_all();
        }
        WatchedCall(self)
    }

    fn run(&self, tick: impl Fn() -> bool) {
        loop {
            let mut state = self.state.lock();
            state.asleep = true;
            self.wake.wait_while(&mut state, |state| state.calls == 0 && !state.over);
            state.asleep = false;
            // A call that starts meanwhile does not shorten the tick of running ones.
            self.wake.wait_while_for(&mut state, |state| !state.over, TICK);
            if state.over || !tick() {
                return;
            }
        }
    }
}

impl Drop for WatchedCall<'_> {
    fn drop(&mut self) {
        self.0.state.lock().calls -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "compiler")]
    use crate::wasm::guest::Subject;
    #[cfg(feature = "compiler")]
    use tidegate_core::queue::plugin::Role;

    #[test]
    fn the_recorded_engine_has_its_full_version() {
        let manifest = include_str!("../../../Cargo.toml");
        let version = ENGINE.strip_prefix("wasmtime ").unwrap().split('/').next().unwrap();
        assert!(manifest.contains(&format!("wasmtime = {{ version = \"={version}\"")), "{version}");
    }

    /// The time that other programs take passes on the clock, and not in the thread of the call.
    #[cfg(feature = "compiler")]
    #[test]
    fn time_without_the_processor_does_not_count() {
        // (module (func (export "f")))
        let module = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x07\x05\x01\x01f\0\0\x0a\x04\x01\x02\0\x0b";
        let code = Engine::new(&config()).unwrap().precompile_module(module).unwrap();
        let runtime = Runtime::new().unwrap();
        // SAFETY: the compiler has written the code a line above.
        #[allow(unsafe_code, reason = "the code comes from the compiler")]
        let module = unsafe { wasmtime::Module::deserialize(&runtime.engine, code) }.unwrap();
        let guest = Guest::new(None, Subject::Itself(Role::Throttler));
        let (outcome, _) = runtime.call(guest, |store| {
            let instance = wasmtime::Instance::new(&mut *store, &module, &[])?;
            let function = instance.get_typed_func::<(), ()>(&mut *store, "f")?;
            (0..1000).for_each(|_| runtime.engine.increment_epoch());
            function.call(&mut *store, ())
        });
        outcome.unwrap();
    }

    #[test]
    fn code_with_another_hash_is_not_loaded() {
        let fault = Runtime::new().unwrap().load(b"anything", &"0".repeat(64)).err().unwrap();
        assert_eq!(fault.kind, FaultKind::Unavailable);
        assert!(fault.message.contains("not what was compiled"), "{fault}");
    }
}
