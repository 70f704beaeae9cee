//! A blob as it comes: a reader that fails when the registry is slow, silent, or does not keep to the size.

use std::io::{self, Read};
use std::time::Instant;

use bytes::Bytes;
use coracle_snapshot::Descriptor;
use reqwest::Response;

use crate::session::Session;
use crate::{Error, ErrorKind};

/// Reads the body of a response. Its digest is the business of who reads.
pub(crate) struct Download<'a> {
    session: &'a Session<'a>,
    response: Response,
    blob: &'a Descriptor,
    /// What came and was not read yet: no more than the transport reads at once.
    rest: Bytes,
    received: u64,
    deadline: Instant,
    report: &'a mut dyn FnMut(u64),
    failure: Option<Error>,
}

impl<'a> Download<'a> {
    pub(crate) fn new(
        session: &'a Session<'a>,
        response: Response,
        blob: &'a Descriptor,
        report: &'a mut dyn FnMut(u64),
    ) -> Self {
        let deadline = session.deadline(blob.size);
        Self { session, response, blob, rest: Bytes::new(), received: 0, deadline, report, failure: None }
    }

    /// Why reading failed, if it did.
    pub(crate) fn failure(self) -> Option<Error> {
        self.failure
    }

    /// Gets more, or finds the end.
    fn fill(&mut self) -> Result<(), Error> {
        let Descriptor { digest, size, .. } = self.blob;
        let answer = |what: String| Err(Error::new(ErrorKind::Answer, what));
        while self.rest.is_empty() {
            let what = format!("fetch {digest}");
            let Some(bytes) = self.session.wait(self.response.chunk(), self.deadline, &what)? else {
                if self.received < *size {
                    let received = self.received;
                    return answer(format!(
                        "the registry sent {received} bytes of {digest}, whose manifest says {size}"
                    ));
                }
                break;
            };
            self.received = self.received.saturating_add(bytes.len() as u64);
            if self.received > *size {
                return answer(format!(
                    "the registry sends more bytes of {digest} than the {size} that its manifest says"
                ));
            }
            self.rest = bytes;
            (self.report)(self.received);
        }
        Ok(())
    }
}

impl Read for Download<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Err(failure) = self.fill() {
            let text = failure.to_string();
            self.failure = Some(failure);
            return Err(io::Error::other(text));
        }
        let count = out.len().min(self.rest.len());
        out[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}
