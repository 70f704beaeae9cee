//! Shows on a terminal that long work goes on: a bar where the work tells how far it is, else a spinner and the time.

use std::io::{self, IsTerminal as _};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that is over by then is not shown.
const PATIENCE: Duration = Duration::from_millis(300);
const TICK: Duration = Duration::from_millis(100);

/// Does the work. `what` is shown meanwhile, unless the output is for programs.
pub(crate) fn during<T>(what: &'static str, as_json: bool, work: impl FnOnce() -> T) -> T {
    if as_json || !io::stderr().is_terminal() {
        return work();
    }
    thread::scope(|scope| {
        let (done, waiting) = mpsc::channel::<()>();
        scope.spawn(move || {
            if waiting.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
                .with_elapsed(PATIENCE)
                .with_message(what);
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(TICK);
            let _ = waiting.recv(); // Ends when the work drops its end.
            bar.finish_and_clear();
        });
        let _done = done;
        work()
    })
}

/// How far long work is that can tell. Nothing where nobody looks.
pub(crate) struct Bar(Option<ProgressBar>);

impl Bar {
    /// Of bytes. `what` is shown beside it, unless the output is for programs.
    pub(crate) fn of_bytes(what: &'static str, as_json: bool) -> Self {
        if as_json || !io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr()).with_message(what);
        let template = "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(Some(bar))
    }

    pub(crate) fn at(&self, done: u64, total: u64) {
        if let Some(bar) = &self.0 {
            bar.set_length(total);
            bar.set_position(done);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_work_is_done_and_its_result_returned() {
        assert_eq!(super::during("testing", true, || 7), 7);
        assert_eq!(super::during("testing", false, || 8), 8);
    }
}
