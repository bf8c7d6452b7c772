//! Panics while a history is played. Each fails the history, also one that the operator survives: in
//! a handler of the admission server, or in a worker that is started again.

use std::{cell::RefCell, panic, sync::Once};

thread_local! {
    /// Panics on this thread since the last call of [`take`]. A history runs on one thread.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Collects panics from now on. They are still printed.
pub fn collect() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let reason = info.payload_as_str().unwrap_or("no message");
            PANICS.with_borrow_mut(|panics| panics.push(format!("panic at {place}: {reason}")));
            print(info);
        }));
    });
}

/// Returns the panics on this thread since the last call.
pub fn take() -> Vec<String> {
    PANICS.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_that_is_caught_is_collected_once() {
        collect();
        take();

        let caught = panic::catch_unwind(|| panic!("index {} of nothing", 3));

        assert!(caught.is_err());
        let panics = take();
        assert!(panics.len() == 1 && panics[0].ends_with("index 3 of nothing"), "{panics:?}");
        assert!(take().is_empty());
    }
}
