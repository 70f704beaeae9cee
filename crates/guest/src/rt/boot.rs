//! The boot page, read in place, and the memory that it gives.
//!
//! Nothing of it is kept: a guest that was restored or spawned finds another generation there.
#![allow(unsafe_code)] // Reads a page that the host wrote, at an address that the host gave.

use core::ffi::{CStr, c_char};
use core::ptr::{self, NonNull, null_mut};
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use coracle_abi::ABI_VERSION;
use coracle_abi::boot::{BootInfo, MAGIC, Region};
use coracle_abi::mapping::{TABLE_BYTES, TABLE_OFFSET};
use coracle_abi::port::AT_CORACLE;

use super::window::Window;

/// The boot page. Where one of these exists, the program runs in a sandbox, on its only thread.
#[derive(Clone, Copy)]
pub(crate) struct Boot(NonNull<BootInfo>); // Invariant: the host's page, mapped for as long as the program runs.

/// Null until [`Boot::find`] found it.
static BOOT: AtomicPtr<BootInfo> = AtomicPtr::new(null_mut());

/// The program's arguments, as the kernel or the host left them, with a null pointer at the end.
static ARGUMENTS: AtomicPtr<*const c_char> = AtomicPtr::new(null_mut());

impl Boot {
    /// The boot page, if [`Boot::find`] found it.
    #[inline]
    pub(crate) fn get() -> Option<Self> {
        NonNull::new(BOOT.load(Relaxed)).map(Self)
    }

    /// Looks for the boot page in the auxiliary vector, and keeps its place and that of the arguments.
    ///
    /// # Safety
    /// `arguments` points to the first of a new program's arguments, on its initial stack, which nobody changed: their
    /// pointers and a null pointer, those of the environment and a null pointer, and the auxiliary vector.
    pub(crate) unsafe fn find(arguments: *const *const c_char) -> Option<Self> {
        ARGUMENTS.store(arguments.cast_mut(), Relaxed);
        // SAFETY: the arguments end with a null pointer.
        let environment = unsafe { after_null(arguments) };
        // SAFETY: so does the environment.
        let mut entry = unsafe { after_null(environment) }.cast::<[u64; 2]>();
        loop {
            // SAFETY: an entry of the auxiliary vector, whose last one has not been passed.
            match unsafe { entry.read() } {
                [0, _] => return None,
                [AT_CORACLE, address] => {
                    let page = NonNull::new(ptr::with_exposed_provenance_mut::<BootInfo>(address as usize))?;
                    // SAFETY: the entry's meaning is that this is readable.
                    let info = unsafe { page.read() };
                    if info.magic != MAGIC || info.abi_version != ABI_VERSION {
                        return None;
                    }
                    BOOT.store(page.as_ptr(), Relaxed);
                    return Some(Self(page));
                }
                // SAFETY: not the last entry.
                _ => entry = unsafe { entry.add(1) },
            }
        }
    }

    /// What it says now. The compiler reads those fields only which are used.
    #[inline]
    pub(crate) fn info(self) -> BootInfo {
        // SAFETY: mapped and of this type, by the type's invariant. The host changes it only while it runs itself.
        unsafe { self.0.read() }
    }

    /// The queues.
    #[inline]
    pub(crate) fn queues(self) -> Window<'static> {
        window(self.info().queues)
    }

    /// Where the guest's messages lie.
    #[inline]
    pub(crate) fn outbound(self) -> Window<'static> {
        window(self.info().outbound)
    }

    /// Where its large ones lie.
    #[inline]
    pub(crate) fn outbound_large(self) -> Window<'static> {
        window(self.info().outbound_large)
    }

    /// Where its log records lie.
    #[inline]
    pub(crate) fn log(self) -> Window<'static> {
        window(self.info().log)
    }

    /// What the host gave by `init_data`.
    pub(crate) fn init_data(self) -> &'static [u8] {
        let Region { address, bytes } = self.info().init_data;
        match NonNull::new(ptr::with_exposed_provenance_mut(address as usize)) {
            // SAFETY: the host mapped that many bytes there, read-only and for good.
            Some(start) => unsafe { slice::from_raw_parts(start.as_ptr(), bytes as usize) },
            None => &[],
        }
    }
}

/// The table of mapped content, copied: the host may have changed it since the last call.
pub(crate) fn mapping_table() -> Option<[u8; TABLE_BYTES]> {
    let boot = Boot::get()?;
    // SAFETY: the table lies in the boot page, which is larger.
    let table = unsafe { boot.0.cast::<u8>().add(TABLE_OFFSET as usize) };
    // SAFETY: mapped as the boot page is, for good; any bytes are a value of this type, and bytes need no alignment.
    Some(unsafe { table.cast().read() })
}

/// A buffer that the boot page names.
#[inline]
fn window(region: Region) -> Window<'static> {
    // SAFETY: the host mapped it readable and writable for good, outside of everything that the program has.
    unsafe { Window::at(region.address, region.bytes) }
}

/// The program's arguments, its name first. Empty before `main`.
pub(crate) fn arguments() -> impl Iterator<Item = &'static str> {
    let mut next: *const *const c_char = ARGUMENTS.load(Relaxed);
    core::iter::from_fn(move || {
        if next.is_null() {
            return None;
        }
        // SAFETY: an argument or the null pointer at the end, which is not passed; `find`'s caller vouched for them.
        let argument = unsafe { next.read() };
        if argument.is_null() {
            return None;
        }
        // SAFETY: at most the null pointer at the end.
        next = unsafe { next.add(1) };
        // SAFETY: arguments end with a zero byte, and nobody writes to the initial stack.
        let argument = unsafe { CStr::from_ptr(argument) };
        // The host's are text; a program that runs under Linux directly ends before it could see another.
        Some(argument.to_str().unwrap_or_default())
    })
}

/// What follows the next null pointer.
///
/// # Safety
/// `pointers` points to pointers of which one is null.
unsafe fn after_null(mut pointers: *const *const c_char) -> *const *const c_char {
    loop {
        // SAFETY: the null pointer was not passed yet.
        let pointer = unsafe { pointers.read() };
        // SAFETY: at most one past the null pointer.
        pointers = unsafe { pointers.add(1) };
        if pointer.is_null() {
            return pointers;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_page_is_found_behind_arguments_and_environment() {
        // For good: what is found is kept.
        let page: &'static BootInfo = Box::leak(Box::new(BootInfo {
            magic: MAGIC,
            abi_version: ABI_VERSION,
            generation: 7,
            ..Default::default()
        }));
        let address = ptr::from_ref(page).expose_provenance();
        let (name, argument) = (c"program".as_ptr(), c"one".as_ptr());
        let variable = c"A=b".as_ptr();
        let number = ptr::without_provenance::<c_char>;
        let stack = [name, argument, number(0), variable, number(0), number(6), number(4096)];
        let vector = [number(AT_CORACLE as usize), number(address), number(0), number(0)];
        let stack: &'static [*const c_char] = Box::leak([&stack[..], &vector[..]].concat().into_boxed_slice());
        // SAFETY: laid out as the function wants it.
        let boot = unsafe { Boot::find(stack.as_ptr()) }.expect("it is there");
        assert_eq!(boot.info().generation, 7);
        assert!(boot.init_data().is_empty());
        assert_eq!(arguments().collect::<Vec<_>>(), ["program", "one"]);
        // What other tests see must be a program outside of a sandbox.
        BOOT.store(null_mut(), Relaxed);
    }

    #[test]
    fn an_ordinary_program_has_none() {
        let stack = [core::ptr::null::<c_char>(); 4];
        // SAFETY: laid out as the function wants it.
        assert!(unsafe { Boot::find(stack.as_ptr()) }.is_none());
    }
}
