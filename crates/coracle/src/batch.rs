//! Many calls with few entries: [`Sandbox::call_batch`] for one function, [`Batch`] for several.
//!
//! Entering the guest costs more than most functions do. A batch puts as many calls into the queue as there is room for
//! (64 at most), and enters once for all of them.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::calling::Target;
use crate::error::{Error, ErrorKind};
use crate::sandbox::{Function, Sandbox};

/// Calls of several functions, to be made at once.
///
/// ```
/// # use coracle::{Batch, Sandbox, fake::FakeGuest};
/// # let guest = FakeGuest::new()
/// #     .function("double", |n: u32| Ok::<_, String>(n * 2))
/// #     .function("length", |text: String| Ok::<_, String>(text.len() as u64));
/// # let mut sandbox = Sandbox::builder(&guest.image()).backend(guest.backend()).build()?;
/// let double = sandbox.function::<u32, u32>("double")?;
/// let length = sandbox.function::<str, u64>("length")?;
///
/// let mut batch = Batch::new();
/// let doubled = batch.add(&double, &21)?;
/// let counted = batch.add(&length, "hello")?;
/// let mut answers = sandbox.run_batch(&batch);
/// assert_eq!(answers.take(doubled)?, 42);
/// assert_eq!(answers.take(counted)?, 5);
/// # Ok::<(), coracle::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch {
    calls: Vec<(Target, usize)>, // Where each one's arguments end.
    arguments: Vec<u8>,
}

/// Which call of a [`Batch`] an answer belongs to.
pub struct Ticket<R> {
    number: usize,
    result: PhantomData<fn() -> R>,
}

impl<R> Clone for Ticket<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Ticket<R> {}

impl<R> fmt::Debug for Ticket<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("number", &self.number).finish()
    }
}

impl Batch {
    /// No calls.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a call, behind those that are there.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when the arguments have no wire form. Nothing is added then.
    pub fn add<A, R>(&mut self, function: &Function<A, R>, args: &A) -> Result<Ticket<R>, Error>
    where
        A: Serialize + ?Sized,
    {
        let before = self.arguments.len();
        let ticket = Ticket { number: self.calls.len(), result: PhantomData };
        match postcard::to_io(args, &mut self.arguments) {
            Ok(_) => {
                self.calls.push((function.target(), self.arguments.len()));
                Ok(ticket)
            }
            Err(error) => {
                self.arguments.truncate(before);
                Err(Error::new(
                    ErrorKind::Config,
                    "the arguments cannot be encoded: not every serde type has a wire form",
                )
                .with_source(error))
            }
        }
    }

    /// How many calls it has.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

/// What the calls of a [`Batch`] answered.
#[derive(Debug)]
pub struct Answers {
    results: Vec<Option<Result<Vec<u8>, Error>>>,
}

impl Answers {
    /// A call's result, once.
    ///
    /// # Errors
    /// The call's own, as [`Sandbox::call`]. [`ErrorKind::Config`] when it was taken, or the ticket is of another batch.
    pub fn take<R: DeserializeOwned>(&mut self, ticket: Ticket<R>) -> Result<R, Error> {
        let result = self.results.get_mut(ticket.number).and_then(Option::take);
        let result = result.ok_or_else(|| Error::new(ErrorKind::Config, "this answer was taken, or never was"))??;
        match postcard::take_from_bytes(&result) {
            Ok((result, [])) => Ok(result),
            _ => Err(Error::new(ErrorKind::GuestStopped, "the guest's answer is not of the function's type")),
        }
    }

    /// How many calls there were.
    pub fn len(&self) -> usize {
        self.results.len()
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.results.is_empty()
    }
}

impl Sandbox {
    /// Calls one function with many arguments, and enters the guest as seldom as there is room for calls in its queue. There is a
    /// result for each, in order; one that fails is no obstacle to the others, unless the guest stops: those behind it are
    /// then [`ErrorKind::Unusable`], and were not made.
    ///
    /// A timeout holds for each entry, with all the calls that are made in it.
    ///
    /// ```
    /// # use coracle::{Sandbox, fake::FakeGuest};
    /// # let guest = FakeGuest::new().function("divide", |(a, b): (u32, u32)| a.checked_div(b).ok_or("division by zero"));
    /// # let mut sandbox = Sandbox::builder(&guest.image()).backend(guest.backend()).build()?;
    /// let divide = sandbox.function::<(u32, u32), u32>("divide")?;
    /// let results = sandbox.call_batch(&divide, [(7, 2), (7, 0), (9, 3)]);
    /// assert_eq!(results.iter().flatten().collect::<Vec<_>>(), [&3, &3]);
    /// assert_eq!(results[1].as_ref().unwrap_err().to_string(), "division by zero");
    /// # Ok::<(), coracle::Error>(())
    /// ```
    pub fn call_batch<A, R, I>(&mut self, function: &Function<A, R>, args: I) -> Vec<Result<R, Error>>
    where
        A: Serialize + ?Sized,
        R: DeserializeOwned,
        I: IntoIterator<Item: Borrow<A>>,
    {
        let target = function.target();
        let mut args = args.into_iter();
        let mut results = InOrder(Vec::with_capacity(args.size_hint().0.min(RESERVED_MAX)));
        self.exchange_many(
            |sandbox| args.next().map(|args| sandbox.encode(args.borrow()).map(|()| target)),
            |sandbox, position, result| results.put(position, result.and_then(|()| sandbox.decode())),
        );
        results.0.into_iter().flatten().collect()
    }

    /// Makes the calls of a batch, in order: see [`Sandbox::call_batch`].
    pub fn run_batch(&mut self, batch: &Batch) -> Answers {
        let mut calls = batch.calls.iter();
        let mut start = 0;
        let mut results = InOrder(Vec::with_capacity(batch.len()));
        self.exchange_many(
            |sandbox| {
                let (target, end) = *calls.next()?;
                sandbox.outgoing.clear();
                sandbox.outgoing.extend_from_slice(&batch.arguments[start..end]);
                start = end;
                Some(Ok(target))
            },
            |sandbox, position, result| results.put(position, result.map(|()| sandbox.incoming.clone())),
        );
        Answers { results: results.0 }
    }
}

/// Results for which room is made before there is one.
const RESERVED_MAX: usize = 1024;

/// Results that may come in another order: what could not be sent has its at once.
struct InOrder<T>(Vec<Option<T>>);

impl<T> InOrder<T> {
    fn put(&mut self, position: usize, result: T) {
        if self.0.len() <= position {
            self.0.resize_with(position + 1, || None);
        }
        self.0[position] = Some(result);
    }
}
