//! A line to a registry that counts what comes through, and can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Passes bytes on, until its process ends.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    line: Arc<Line>,
}

struct Line {
    to: SocketAddr,
    sent: AtomicU64,
    received: AtomicU64,
    /// All connections are cut when so many bytes have come from the registry.
    cut_after: AtomicU64,
}

impl Proxy {
    pub(crate) fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sent, received, cut_after) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(u64::MAX));
        let line = Arc::new(Line { to, sent, received, cut_after });
        let for_thread = line.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                for_thread.clone().connect(stream);
            }
        });
        Self { address, line }
    }

    /// Bytes that went to the registry and came from it since the last call.
    pub(crate) fn counted(&self) -> (u64, u64) {
        (self.line.sent.swap(0, Ordering::SeqCst), self.line.received.swap(0, Ordering::SeqCst))
    }

    /// Cuts the line when the registry has sent so many more bytes.
    pub(crate) fn cut_after(&self, bytes: u64) {
        self.line.received.store(0, Ordering::SeqCst);
        self.line.cut_after.store(bytes, Ordering::SeqCst);
    }

    pub(crate) fn mend(&self) {
        self.line.cut_after.store(u64::MAX, Ordering::SeqCst);
    }
}

impl Line {
    fn connect(self: Arc<Self>, client: TcpStream) {
        let Ok(registry) = TcpStream::connect(self.to) else { return };
        let (client_too, registry_too) = (client.try_clone().unwrap(), registry.try_clone().unwrap());
        let line = self.clone();
        std::thread::spawn(move || line.pass(client, registry, true));
        std::thread::spawn(move || self.pass(registry_too, client_too, false));
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, is_request: bool) {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let counter = if is_request { &self.sent } else { &self.received };
            let all = counter.fetch_add(count as u64, Ordering::SeqCst) + count as u64;
            let is_cut = !is_request && all > self.cut_after.load(Ordering::SeqCst);
            if is_cut || to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}
