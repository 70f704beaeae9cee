//! Linux error numbers, as far as they are used here (`asm-generic/errno.h`).

/// An error number that a system call answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub(super) const EPERM: Self = Self(1);
    pub(super) const ENOENT: Self = Self(2);
    pub(super) const ESRCH: Self = Self(3);
    pub(super) const EIO: Self = Self(5);
    pub(super) const EBADF: Self = Self(9);
    pub(super) const ECHILD: Self = Self(10);
    pub(super) const EAGAIN: Self = Self(11);
    pub(super) const ENOMEM: Self = Self(12);
    pub(super) const EACCES: Self = Self(13);
    pub(super) const EFAULT: Self = Self(14);
    pub(super) const EEXIST: Self = Self(17);
    pub(super) const ENODEV: Self = Self(19);
    pub(super) const EINVAL: Self = Self(22);
    pub(super) const EMFILE: Self = Self(24);
    pub(super) const ENOTTY: Self = Self(25);
    pub(super) const ENOSPC: Self = Self(28);
    pub(super) const ESPIPE: Self = Self(29);
    pub(super) const EPIPE: Self = Self(32);
    pub(super) const ERANGE: Self = Self(34);
    pub(super) const ENAMETOOLONG: Self = Self(36);
    pub(super) const ENOSYS: Self = Self(38);
    pub(super) const ETIMEDOUT: Self = Self(110);

    /// As it stands in RAX.
    pub(super) fn result(self) -> i64 {
        -i64::from(self.0)
    }
}
