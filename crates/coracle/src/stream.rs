//! A guest's standard streams: what the embedder gives for them.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use crate::deadline::Deadline;

/// Where a guest's standard input comes from. Default: nothing.
#[derive(Default)]
pub struct Input(Source);

#[derive(Default)]
enum Source {
    #[default]
    Null,
    Bytes(Rest),
    Inherit,
    Reader(Box<dyn Read + Send>),
}

/// Bytes, and how many of them were read: what a snapshot keeps of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    bytes: Arc<[u8]>,
    read: usize,
}

impl Rest {
    fn take(&mut self, out: &mut [u8]) -> usize {
        let rest = &self.bytes[self.read..];
        let count = rest.len().min(out.len());
        out[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        count
    }
}

impl Input {
    /// Nothing: end of file at once.
    pub fn null() -> Self {
        Self(Source::Null)
    }

    /// These bytes, then end of file. A restore goes back to where the guest was in them when the snapshot was taken, and a sandbox
    /// that is made from it without an input of its own reads on from there. Other inputs are not rewound.
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self(Source::Bytes(Rest { bytes: bytes.into().into(), read: 0 }))
    }

    /// The host process's own standard input.
    pub fn inherit() -> Self {
        Self(Source::Inherit)
    }

    /// What `reader` gives. A read that blocks blocks the guest; a deadline interrupts it with
    /// [`io::ErrorKind::Interrupted`], which `reader` should pass on.
    pub fn reader(reader: impl Read + Send + 'static) -> Self {
        Self(Source::Reader(Box::new(reader)))
    }

    /// What a snapshot keeps.
    pub(crate) fn rest(&self) -> Option<Rest> {
        match &self.0 {
            Source::Bytes(rest) => Some(rest.clone()),
            _ => None,
        }
    }

    /// From a snapshot.
    pub(crate) fn from_rest(rest: Option<Rest>) -> Self {
        Self(rest.map_or(Source::Null, Source::Bytes))
    }

    /// Goes back to there, if it has the same bytes.
    pub(crate) fn rewind(&mut self, to: Option<&Rest>) {
        if let (Source::Bytes(rest), Some(to)) = (&mut self.0, to)
            && Arc::ptr_eq(&rest.bytes, &to.bytes)
        {
            rest.read = to.read;
        }
    }

    pub(crate) fn read(&mut self, out: &mut [u8], deadline: &Deadline) -> ReadOutcome {
        loop {
            let result = match &mut self.0 {
                Source::Null => Ok(0),
                Source::Bytes(rest) => Ok(rest.take(out)),
                Source::Inherit => rustix::io::read(rustix::stdio::stdin(), &mut *out).map_err(io::Error::from),
                Source::Reader(reader) => reader.read(out),
            };
            match result {
                Ok(bytes) => return ReadOutcome::Bytes(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    if deadline.is_over() {
                        return ReadOutcome::TimedOut;
                    }
                }
                Err(_) => return ReadOutcome::Failed,
            }
        }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Source::Null => "Input::null",
            Source::Bytes(_) => "Input::bytes",
            Source::Inherit => "Input::inherit",
            Source::Reader(_) => "Input::reader",
        })
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    Bytes(usize),
    Failed,
    TimedOut,
}

/// Where a guest's standard output or error goes. Default: nowhere.
#[derive(Default)]
pub struct Output(Sink);

#[derive(Default)]
enum Sink {
    #[default]
    Null,
    InheritOutput,
    InheritError,
    Capture(Captured, usize),
    Writer(Box<dyn Write + Send>),
}

/// What a guest wrote to a captured stream. Clones show the same bytes.
#[derive(Clone, Debug, Default)]
pub struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    /// What came since the last call, and forgets it: the limit counts anew.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What came since the last [`Captured::take`], as text; invalid UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Output {
    /// Nowhere: every write succeeds.
    pub fn null() -> Self {
        Self(Sink::Null)
    }

    /// The host process's own standard output.
    pub fn inherit_stdout() -> Self {
        Self(Sink::InheritOutput)
    }

    /// The host process's own standard error.
    pub fn inherit_stderr() -> Self {
        Self(Sink::InheritError)
    }

    /// Into memory, up to `limit` bytes. What goes beyond is refused, and the guest sees a full disk (`ENOSPC`).
    pub fn capture(limit: usize) -> (Self, Captured) {
        let captured = Captured::default();
        (Self(Sink::Capture(captured.clone(), limit)), captured)
    }

    /// To `writer`, in the pieces in which the guest writes.
    pub fn writer(writer: impl Write + Send + 'static) -> Self {
        Self(Sink::Writer(Box::new(writer)))
    }

    pub(crate) fn write(&mut self, bytes: &[u8], deadline: &Deadline) -> WriteOutcome {
        let result = match &mut self.0 {
            Sink::Null => Ok(bytes.len()),
            Sink::InheritOutput => write_all(&mut Descriptor(rustix::stdio::stdout()), bytes, deadline),
            Sink::InheritError => write_all(&mut Descriptor(rustix::stdio::stderr()), bytes, deadline),
            Sink::Capture(captured, limit) => {
                let mut buffer = captured.0.lock().unwrap_or_else(PoisonError::into_inner);
                let fits = bytes.len().min(limit.saturating_sub(buffer.len()));
                buffer.extend_from_slice(&bytes[..fits]);
                Ok(fits)
            }
            Sink::Writer(writer) => write_all(writer, bytes, deadline),
        };
        match result {
            Ok(bytes) => WriteOutcome::Bytes(bytes),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => WriteOutcome::Closed,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => WriteOutcome::TimedOut,
            Err(_) => WriteOutcome::Failed,
        }
    }
}

/// One of the host process's own descriptors, past std's buffers, which would hold a guest's output back.
struct Descriptor<F>(F);

impl<F: rustix::fd::AsFd> Write for Descriptor<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes everything, unless the deadline interrupts: [`io::ErrorKind::TimedOut`].
fn write_all(writer: &mut dyn Write, bytes: &[u8], deadline: &Deadline) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match writer.write(&bytes[done..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written.min(bytes.len() - done),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                if deadline.is_over() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    writer.flush()?;
    Ok(done)
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Sink::Null => "Output::null",
            Sink::InheritOutput => "Output::inherit_stdout",
            Sink::InheritError => "Output::inherit_stderr",
            Sink::Capture(..) => "Output::capture",
            Sink::Writer(_) => "Output::writer",
        })
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// So many were taken; fewer than given if the sink is full.
    Bytes(usize),
    /// Nobody reads any more.
    Closed,
    /// The deadline passed while the sink took nothing.
    TimedOut,
    Failed,
}

/// The three streams of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) input: Input,
    pub(crate) output: Output,
    pub(crate) error: Output,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_takes_what_fits() {
        let never = Deadline::never();
        let (mut output, captured) = Output::capture(5);
        assert_eq!(output.write(b"abc", &never), WriteOutcome::Bytes(3));
        assert_eq!(output.write(b"defg", &never), WriteOutcome::Bytes(2));
        assert_eq!(output.write(b"h", &never), WriteOutcome::Bytes(0));
        assert_eq!(captured.text(), "abcde");
        assert_eq!(captured.take(), b"abcde");
        assert_eq!(output.write(b"h", &never), WriteOutcome::Bytes(1));
    }

    #[test]
    fn bytes_end() {
        let mut input = Input::bytes(*b"xy");
        let mut out = [0; 8];
        assert_eq!(input.read(&mut out, &Deadline::never()), ReadOutcome::Bytes(2));
        assert_eq!(input.read(&mut out, &Deadline::never()), ReadOutcome::Bytes(0));
    }

    #[test]
    fn a_broken_writer_is_a_closed_stream() {
        struct Broken;
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert_eq!(Output::writer(Broken).write(b"x", &Deadline::never()), WriteOutcome::Closed);
    }

    #[test]
    fn a_stalled_sink_does_not_outlast_the_deadline() {
        struct Stalled;
        impl Write for Stalled {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::Interrupted.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        struct NoKick;
        impl coracle_vm::Kick for NoKick {
            fn kick(&self, _: coracle_vm::kick::ThreadId) {}
        }
        let deadline = Deadline::after(std::time::Duration::from_millis(5), Arc::new(NoKick));
        assert_eq!(Output::writer(Stalled).write(b"x", &deadline), WriteOutcome::TimedOut);
    }

    #[test]
    fn an_interrupted_read_is_tried_again_until_the_deadline() {
        struct Interrupted(u8);
        impl Read for Interrupted {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                self.0 += 1;
                if self.0 < 3 {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                out[0] = self.0;
                Ok(1)
            }
        }
        let mut out = [0; 4];
        assert_eq!(Input::reader(Interrupted(0)).read(&mut out, &Deadline::never()), ReadOutcome::Bytes(1));
        assert_eq!(out[0], 3);
    }
}
