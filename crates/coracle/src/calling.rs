//! Calling guest functions, one or many at once: what goes into the queues, and what is done about what comes out.
//!
//! The guest is entered when there is nothing left to look at. All that it sent is taken in order: log records and
//! notifications are passed on, host calls answered, until the answer that is waited for is there.
//!
//! A host function has no way to the sandbox that called it, which is borrowed for as long as a call lasts: so it cannot
//! call back into it, and nothing needs to stop it from that.

use std::marker::PhantomData;

use coracle_abi::message::{Header, Kind, NOTIFY};
use postcard_schema::Schema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::crash::Cause;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind};
use crate::log;
use crate::machine::Stop;
use crate::sandbox::{Function, Sandbox, Status};
use crate::transport::{Received, Unsent};

/// Bytes of memory that buffers keep from call to call.
const KEPT_BYTES: usize = 256 << 10;

/// Longest text of an error that a guest gets in place of a host function's result.
const ERROR_BYTES: usize = 512;

/// What the guest answered. The payload is in `incoming`.
enum Answer {
    Ready,
    Reply,
    /// The error's text.
    Error,
}

/// A call that is ready to be sent but for its arguments, which are in `outgoing`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    index: u16,
    key: u64,
}

impl<A: ?Sized, R> Function<A, R> {
    pub(crate) fn target(&self) -> Target {
        Target { index: self.index, key: self.key }
    }
}

impl Sandbox {
    pub(crate) fn resolve<A: Schema, R: Schema>(&self, name: &str, _: &A, _: PhantomData<R>) -> Result<Target, Error> {
        Ok(self.function::<A, R>(name)?.target())
    }

    pub(crate) fn call_target<A, R>(&mut self, target: Target, args: &A) -> Result<R, Error>
    where
        A: Serialize + ?Sized,
        R: DeserializeOwned,
    {
        self.encode(args)?;
        self.exchange(target)?;
        self.decode()
    }

    /// Makes `args` what is sent.
    pub(crate) fn encode<A: Serialize + ?Sized>(&mut self, args: &A) -> Result<(), Error> {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        outgoing.clear();
        self.outgoing = postcard::to_extend(args, outgoing).map_err(|error| {
            Error::new(ErrorKind::Config, "the arguments cannot be encoded: not every serde type has a wire form")
                .with_source(error)
        })?;
        Ok(())
    }

    /// The result that came.
    pub(crate) fn decode<R: DeserializeOwned>(&mut self) -> Result<R, Error> {
        match postcard::take_from_bytes(&self.incoming) {
            Ok((result, [])) => Ok(result),
            // The types were compared: a guest that answers something else does not keep to the protocol.
            _ => Err(self.violation("its result is not of the function's type")),
        }
    }

    /// Sends what is in `outgoing` to a function, and leaves its result in `incoming`.
    pub(crate) fn exchange(&mut self, target: Target) -> Result<(), Error> {
        self.check_ready()?;
        self.forget_large_buffers();
        let first = next_correlation(self.serving);
        match self.send(target, first) {
            Ok(()) => {}
            Err(Unsent::Never(error)) => return Err(error),
            Err(Unsent::Full) => return Err(self.violation("it keeps the calls that it has answered")),
        }
        self.serving = first;
        let deadline = self.deadline();
        let result = self.next_result(&deadline);
        if self.status == Status::Ready {
            self.settle()?;
        }
        result
    }

    /// Makes calls as long as `next` puts their arguments into `outgoing` and says where they go, many with each entry.
    /// `done` gets each call's result, in order, with the payload in `incoming`. One that fails is no obstacle to the others,
    /// unless the guest stops.
    pub(crate) fn exchange_many(
        &mut self,
        mut next: impl FnMut(&mut Self) -> Option<Result<Target, Error>>,
        mut done: impl FnMut(&mut Self, usize, Result<(), Error>),
    ) {
        let mut position = 0; // Of the next call.
        let mut held = None; // A call for which there was no room.
        let mut waiting = Vec::new();
        loop {
            let mut last = next_correlation(self.serving);
            loop {
                let call = match held.take().map(Ok).or_else(|| next(self)) {
                    None => break,
                    Some(call) => call,
                };
                let sent = call.and_then(|target| {
                    self.check_ready()?;
                    let correlation = if waiting.is_empty() { last } else { next_correlation(last) };
                    match self.send(target, correlation) {
                        Ok(()) => Ok(Some(correlation)),
                        Err(Unsent::Never(error)) => Err(error),
                        Err(Unsent::Full) if waiting.is_empty() => {
                            Err(self.violation("it keeps the calls that it has answered"))
                        }
                        Err(Unsent::Full) => {
                            held = Some(target);
                            Ok(None)
                        }
                    }
                });
                match sent {
                    Ok(Some(correlation)) => {
                        last = correlation;
                        waiting.push(position);
                    }
                    Ok(None) => break,
                    Err(error) => done(self, position, Err(error)),
                }
                position += 1;
            }
            if waiting.is_empty() {
                return;
            }
            // `outgoing` holds the arguments of the call that found no room: host functions answer by another buffer.
            let kept = held.map(|_| std::mem::take(&mut self.outgoing));
            let deadline = self.deadline();
            for at in waiting.drain(..) {
                self.serving = next_correlation(self.serving);
                let result = self.check_ready().and_then(|()| self.next_result(&deadline));
                done(self, at, result);
            }
            drop(deadline);
            if let Some(kept) = kept {
                self.outgoing = kept;
            }
            if self.status == Status::Ready
                && let Err(error) = self.settle()
            {
                // Told with the next call; all that were made have their results.
                debug_assert!(error.crash().is_some());
            }
        }
    }

    /// Runs a guest that was just loaded until it is ready.
    pub(crate) fn await_ready(&mut self) -> Result<(), Error> {
        let deadline = self.deadline();
        match self.next_answer(&deadline)? {
            Answer::Ready => self.settle(),
            Answer::Reply => Err(self.violation("it replied before it was called")),
            Answer::Error => Err(Error::new(ErrorKind::GuestReturned, self.guest_text())),
        }
    }

    fn deadline(&self) -> Deadline {
        match self.config.timeout {
            Some(timeout) => Deadline::after(timeout, self.machine.vcpu.kicker()),
            None => Deadline::never(),
        }
    }

    /// Sends what is in `outgoing`.
    fn send(&mut self, target: Target, correlation: u32) -> Result<(), Unsent> {
        let header = Header { index: target.index, correlation, ..Header::new(Kind::Call) };
        self.transport.call(&mut self.machine.space, header, target.key, &self.outgoing)?;
        self.calls += 1;
        Ok(())
    }

    fn next_result(&mut self, deadline: &Deadline) -> Result<(), Error> {
        match self.next_answer(deadline)? {
            Answer::Reply => Ok(()),
            Answer::Error => Err(Error::new(ErrorKind::GuestReturned, self.guest_text())),
            Answer::Ready => Err(self.violation("it said twice that it is ready")),
        }
    }

    /// Enters the guest until it answers, and serves what it asks for meanwhile.
    fn next_answer(&mut self, deadline: &Deadline) -> Result<Answer, Error> {
        let mut entered = false;
        loop {
            while let Some(received) = self.receive()? {
                if let Some(answer) = self.serve(&received)? {
                    return Ok(answer);
                }
            }
            if entered && deadline.is_over() {
                return Err(self.timed_out());
            }
            self.enter(deadline)?;
            entered = true;
        }
    }

    /// Enters the guest until it rings.
    fn enter(&mut self, deadline: &Deadline) -> Result<(), Error> {
        let stop = match self.machine.run(deadline) {
            Ok(stop) => stop,
            Err(error) => {
                self.status = Status::Unrecoverable;
                self.machine.shell = None;
                return Err(error);
            }
        };
        let error = match stop {
            Stop::Doorbell => {
                self.pass_on_dropped();
                return Ok(());
            }
            Stop::Exited(code) => {
                self.pass_on_rest();
                self.crash(Cause::ExitedWithoutAnswer(code))
            }
            Stop::TimedOut => {
                self.pass_on_rest();
                self.timed_out()
            }
            Stop::Crashed(mut report) => {
                self.pass_on_rest();
                let refused = self.transport.take_refused_allocation(&mut self.machine.space);
                // The guest's own word, and only about its own abort.
                if refused != 0 && matches!(report.cause, Cause::Abort | Cause::IllegalInstruction) {
                    report.cause = Cause::OutOfMemory;
                }
                Error::crashed(*report)
            }
        };
        self.status = Status::Poisoned;
        Err(error)
    }

    fn receive(&mut self) -> Result<Option<Received>, Error> {
        let received = self.transport.receive(&mut self.machine.space, &mut self.incoming, &mut self.log);
        received.map_err(|cause| self.crash(cause))
    }

    /// Looks at a message. `None`: nobody waits for it.
    fn serve(&mut self, received: &Received) -> Result<Option<Answer>, Error> {
        if received.kind == Kind::Log {
            log::emit(&self.log);
            return Ok(None);
        }
        if received.header.correlation != self.serving {
            return Err(self.violation("its message belongs to another call"));
        }
        match received.kind {
            Kind::Ready => Ok(Some(Answer::Ready)),
            Kind::Reply => Ok(Some(Answer::Reply)),
            Kind::Error => Ok(Some(Answer::Error)),
            Kind::HostCall if received.header.flags & NOTIFY != 0 => {
                self.notified(received.key);
                Ok(None)
            }
            Kind::HostCall => self.host_call(received.key).map(|()| None),
            Kind::Panic => Err(self.panicked()),
            _ => Err(self.violation("its message is of no kind that a guest sends")),
        }
    }

    fn host_call(&mut self, key: u64) -> Result<(), Error> {
        self.host_calls += 1;
        let good = self.host_functions.call(key, &self.incoming, &mut self.outgoing);
        let kind = if good { Kind::HostReply } else { Kind::HostError };
        let header = |kind| Header { correlation: self.serving, ..Header::new(kind) };
        let space = &mut self.machine.space;
        let text = match self.transport.reply(space, header(kind), &self.outgoing) {
            Ok(()) => return Ok(()),
            // The guest learns of it.
            Err(Unsent::Never(_)) if !good => String::from_utf8_lossy(&self.outgoing).into_owned(),
            Err(Unsent::Never(error)) => error.to_string(),
            Err(Unsent::Full) => "replies that are still being decoded leave no room for another".to_owned(),
        };
        let text = &text[..text.floor_char_boundary(ERROR_BYTES)];
        match self.transport.reply(space, header(Kind::HostError), text.as_bytes()) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.violation("it keeps all replies that it got")),
        }
    }

    fn notified(&mut self, key: u64) {
        self.host_calls += 1;
        if !self.host_functions.call(key, &self.incoming, &mut self.outgoing) {
            let error = String::from_utf8_lossy(&self.outgoing);
            tracing::warn!(target: "coracle::host", %error, "a host function that nobody waits for failed");
        }
    }

    fn pass_on_dropped(&mut self) {
        let dropped = self.transport.take_dropped(&mut self.machine.space);
        if dropped > 0 {
            log::emit_dropped(dropped);
        }
    }

    /// Passes on what a guest that was stopped had sent: log records, and what it wanted the host to know.
    fn pass_on_rest(&mut self) {
        let Self { machine, transport, incoming, log, .. } = self;
        // As many as fit a ring at most: each is taken once, and the guest does not run.
        while let Ok(Some(received)) = transport.receive(&mut machine.space, incoming, log) {
            let is_notification = received.kind == Kind::HostCall && received.header.flags & NOTIFY != 0;
            if received.kind == Kind::Log {
                log::emit(log);
            } else if is_notification && received.header.correlation == self.serving {
                self.host_calls += 1;
                self.host_functions.call(received.key, incoming, &mut self.outgoing);
            }
        }
        self.pass_on_dropped();
    }

    /// All calls were answered: nothing else may be there but what needs no answer.
    fn settle(&mut self) -> Result<(), Error> {
        while let Some(received) = self.receive()? {
            if received.kind != Kind::Log {
                return Err(self.violation("it sent more than the answer"));
            }
            log::emit(&self.log);
        }
        self.transport.settle(&mut self.machine.space).map_err(|cause| self.crash(cause))
    }

    /// What a large payload took is not kept for small ones.
    fn forget_large_buffers(&mut self) {
        if self.outgoing.len() <= KEPT_BYTES {
            self.outgoing.shrink_to(KEPT_BYTES);
            if self.incoming.capacity() > KEPT_BYTES {
                self.incoming = Vec::new();
            }
        }
    }

    fn panicked(&mut self) -> Error {
        let decoded: Result<(String, String, u32, u32), _> = postcard::from_bytes(&self.incoming);
        let cause = match decoded {
            Ok((message, file, line, column)) => Cause::Panic { message, location: format!("{file}:{line}:{column}") },
            Err(_) => Cause::ProtocolViolation("it panicked, but did not say how"),
        };
        self.crash(cause)
    }

    fn guest_text(&self) -> String {
        String::from_utf8_lossy(&self.incoming).into_owned()
    }

    pub(crate) fn violation(&mut self, what: &'static str) -> Error {
        self.crash(Cause::ProtocolViolation(what))
    }

    fn crash(&mut self, cause: Cause) -> Error {
        self.status = Status::Poisoned;
        Error::crashed(self.machine.report(None, Some(cause)))
    }

    fn timed_out(&mut self) -> Error {
        self.status = Status::Poisoned;
        let timeout = self.config.timeout.unwrap_or_default();
        Error::new(ErrorKind::TimedOut, format!("the guest did not answer within {timeout:?}: it was stopped"))
    }
}

/// The number of the call after this one. 0 belongs to the start.
fn next_correlation(before: u32) -> u32 {
    before.wrapping_add(1).max(1)
}
