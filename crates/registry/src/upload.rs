//! A blob as it goes: the body of a request, read from a file piece by piece.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// Bytes that are read at once.
const PIECE_BYTES: u64 = 1 << 17;

/// The content of a file of known size. Files are read where the runtime runs, which has nothing else to do.
pub(crate) struct Upload {
    file: File,
    left: u64,
    /// Bytes that the transport took.
    moved: Arc<AtomicU64>,
}

impl Upload {
    pub(crate) fn new(file: File, size: u64, moved: Arc<AtomicU64>) -> Self {
        moved.store(0, Ordering::Relaxed);
        Self { file, left: size, moved }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        if this.left == 0 {
            return Poll::Ready(None);
        }
        let count = this.left.min(PIECE_BYTES);
        let mut piece = vec![0; count as usize];
        if let Err(error) = this.file.read_exact(&mut piece) {
            return Poll::Ready(Some(Err(error)));
        }
        this.left -= count;
        this.moved.fetch_add(count, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
