//! Panics of handlers: each ends its attempt and nothing else, and shows its place and its stack.
//!
//! A hook is the only place that knows them. It is set once, and calls the hook that was there, so
//! an application's own goes on as before. One that the application sets later replaces this one:
//! then the text of the panic is all there is.

use std::{
    backtrace::Backtrace,
    cell::{Cell, RefCell},
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    sync::Once,
};

thread_local! {
    /// Whether this thread polls a handler.
    static IS_IN_HANDLER: Cell<bool> = const { Cell::new(false) };
    /// Where the handler panicked that this thread polls.
    static TRACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A panic of a handler.
pub(crate) struct Panic {
    pub text: String,
    /// Place and stack, innermost first.
    pub trace: String,
}

/// Polls a handler.
pub(crate) fn catch<R>(poll: impl FnOnce() -> R) -> Result<R, Panic> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if IS_IN_HANDLER.get() {
                TRACE.set(Some(trace_of(info)));
            }
            previous(info);
        }));
    });
    TRACE.set(None);
    // A handler may run another one in place.
    let outer = IS_IN_HANDLER.replace(true);
    let polled = panic::catch_unwind(AssertUnwindSafe(poll));
    IS_IN_HANDLER.set(outer);
    polled.map_err(|payload| {
        let text = payload
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| payload.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "of another type".to_owned());
        let trace = TRACE.take().unwrap_or_else(|| format!("panic: {text}"));
        Panic { text, trace }
    })
}

fn trace_of(info: &PanicHookInfo<'_>) -> String {
    let place = info.location().map(|place| format!(" at {place}")).unwrap_or_default();
    let text = info.payload_as_str().unwrap_or("of another type");
    let frames = Backtrace::force_capture().to_string();
    format!("panicked{place}:\n{text}\n{}", own_frames(&frames))
}

/// The frames of the handler, without those of the panic itself and of what polls the handler.
fn own_frames(frames: &str) -> String {
    let lines: Vec<&str> = frames.lines().collect();
    let is_of_panic = |line: &&str| {
        ["rust_begin_unwind", "panicking::panic_fmt", "panicking::begin_panic"]
            .iter()
            .any(|name| line.contains(name))
    };
    let first = lines.iter().take(60).rposition(is_of_panic).map_or(0, |index| index + 1);
    let own = &lines[first..];
    let end = own.iter().position(|line| line.contains("tidegate_client::panic::catch"));
    own[..end.unwrap_or(own.len())].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn deep_in_the_handler() {
        panic!("no {}", "paper");
    }

    #[test]
    fn a_panic_has_its_text_place_and_stack() {
        let caught = catch(deep_in_the_handler).unwrap_err();
        assert_eq!(caught.text, "no paper");
        let first = caught.trace.lines().next().unwrap();
        assert!(first.starts_with("panicked at ") && first.contains("src/panic.rs:"), "{first}");
        assert!(caught.trace.contains("deep_in_the_handler"), "{}", caught.trace);
        assert!(!caught.trace.contains("rust_begin_unwind"), "{}", caught.trace);
    }

    #[test]
    fn a_panic_outside_of_a_handler_is_not_kept() {
        catch(|| ()).ok().unwrap();
        assert!(panic::catch_unwind(deep_in_the_handler).is_err());
        assert_eq!(TRACE.take(), None);
    }

    #[test]
    fn a_hook_that_is_set_later_may_call_this_one() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        // The hook of this crate is there, then the application's, which calls it.
        catch(|| ()).ok().unwrap();
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            CALLS.fetch_add(1, Ordering::Relaxed);
            previous(info);
        }));
        let caught = catch(deep_in_the_handler).unwrap_err();
        assert!(CALLS.load(Ordering::Relaxed) > 0 && caught.trace.contains("deep_in_the_handler"));
    }
}
