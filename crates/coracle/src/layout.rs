//! Where everything of one sandbox lies. Pure arithmetic on the settings and the image.

use std::ops::Range;

use coracle_abi::message::HEAD_MAX;
use coracle_abi::{PAGE_BYTES, PageBytes, map, queue};
use coracle_vm::{Rights, Span};

use crate::config::Config;
use crate::error::{Error, ErrorKind};
use crate::image::Image;

/// Log records that wait for the next exit, in bytes.
const LOG_BYTES: u64 = 16 << 10;

/// Room for messages whose memory is there from the start, each way. What does not fit goes where memory comes when it is
/// touched. Both together with the stack's top and the control pages need one page table.
const SMALL_BYTES: u64 = 64 << 10;

/// Room that calls leave among the host's small messages, for the text of an error. Beside it they leave room for a reply
/// of the largest size, among these or among the large ones.
pub(crate) const ERROR_ROOM: u64 = 1 << 10;

/// The places of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Runs of image pages with equal rights, by address.
    pub(crate) image: Vec<(Span, Rights)>,
    /// Where `brk` may go.
    pub(crate) program_break: Range<u64>,
    /// The stack; the guard below it is never mapped.
    pub(crate) stack: Span,
    /// What only a guest made with the SDK has.
    pub(crate) guest: Option<GuestLayout>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct GuestLayout {
    /// Queues, the guest's small messages behind them in the same page, log records, and the host's small messages.
    pub(crate) transport: Span,
    /// Bytes of the first two, of the log, and of the last.
    pub(crate) parts: [u64; 3],
    /// Large messages, guest to host and host to guest. Address space, until it is touched.
    pub(crate) large: Option<[Span; 2]>,
    /// The most bytes of a payload.
    pub(crate) payload: u64,
    pub(crate) heap: Option<Span>,
    pub(crate) init_data: Option<Span>,
}

impl Layout {
    pub(crate) fn new(config: &Config, image: &Image, is_guest: bool, init_bytes: u64) -> Result<Self, Error> {
        let too_large =
            || Error::new(ErrorKind::Config, "stack, payload and initial data leave no room in the memory map");
        let below = |end: u64, bytes: u64| {
            let size = PageBytes::round_up(bytes)?.get();
            Span::new(end.checked_sub(size)?, size)
        };
        let mut top = map::TRANSPORT_END;
        let message = config.payload() + HEAD_MAX as u64;
        let transport = if is_guest {
            let whole = |bytes: u64| PageBytes::round_up(bytes).map(PageBytes::get).ok_or_else(too_large);
            let outbound = whole((queue::BYTES + message).min(SMALL_BYTES))?;
            let inbound = whole((2 * message + ERROR_ROOM).min(SMALL_BYTES))?;
            let parts = [outbound, LOG_BYTES, inbound];
            let transport = below(top, parts.iter().sum()).ok_or_else(too_large)?;
            top = transport.start() - PAGE_BYTES; // A page that is never mapped, above the stack.
            Some((transport, parts))
        } else {
            None
        };
        let stack = below(top, config.stack()).ok_or_else(too_large)?;
        let floor = stack.start() - map::STACK_GUARD_BYTES;
        if floor < map::IMAGE_END {
            return Err(too_large());
        }
        let bias = image.load_bias();
        let image_end = image.extent().end.wrapping_add(bias);
        let in_window = (map::WINDOW_START..map::IMAGE_END).contains(&image_end);
        let break_end =
            if in_window { map::IMAGE_END } else { image_end.saturating_add(1 << 40).min(map::WINDOW_START) };
        let guest = match transport {
            None => None,
            Some((transport, parts)) => {
                let mut mmap_top = map::MMAP_END;
                let mut next = |bytes: u64| {
                    let span = below(mmap_top, bytes).ok_or_else(too_large)?;
                    mmap_top = span.start();
                    Ok::<_, Error>(span)
                };
                let large =
                    if 2 * message + ERROR_ROOM > parts[2] { Some([next(message)?, next(2 * message)?]) } else { None };
                let heap = match PageBytes::round_up(config.heap()) {
                    Some(PageBytes::ZERO) | None => None,
                    // In the window if it fits, so that it shares page tables with the rest.
                    Some(heap) if heap.get() <= floor - map::IMAGE_END => Span::new(map::IMAGE_END, heap.get()),
                    Some(heap) => Some(next(heap.get())?),
                };
                let init_data = match init_bytes {
                    0 => None,
                    bytes => Some(next(bytes)?),
                };
                Some(GuestLayout { transport, parts, large, payload: config.payload(), heap, init_data })
            }
        };
        Ok(Self { image: image_runs(image, bias)?, program_break: image_end..break_end, stack, guest })
    }
}

/// Pages of the image with equal rights. A page that two segments share has the rights of both; the image was checked
/// for what that may mean.
fn image_runs(image: &Image, bias: u64) -> Result<Vec<(Span, Rights)>, Error> {
    let mut runs: Vec<(Range<u64>, Rights)> = Vec::new();
    for segment in image.segments() {
        let mut range = segment.page_range();
        if let Some((last, rights)) = runs.last_mut()
            && last.end > range.start
        {
            let shared = union(*rights, segment.rights);
            let first = range.start;
            range.start = last.end.min(range.end);
            last.end = first;
            let empty = last.is_empty();
            if empty {
                runs.pop();
            }
            runs.push((first..range.start, shared));
        }
        if !range.is_empty() {
            runs.push((range, segment.rights));
        }
    }
    let span = |range: Range<u64>| Span::new(range.start.wrapping_add(bias), range.end - range.start);
    runs.into_iter()
        .map(|(range, rights)| Some((span(range)?, rights)))
        .collect::<Option<_>>()
        .ok_or_else(|| Error::new(ErrorKind::Image, "the image lies where the host's own pages are"))
}

fn union(a: Rights, b: Rights) -> Rights {
    Rights { read: a.read || b.read, write: a.write || b.write, execute: a.execute || b.execute }
}
