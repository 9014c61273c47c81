//! The errors with which a file system call can fail. `varve-meta`'s `namespace` module chooses them; frontends
//! translate them to an `int`.

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// A Linux errno that Varve can return. The number is Linux's, on the wire too.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        pub enum Errno {
            $(#[doc = $text] #[error($text)] $name,)*
        }

        impl Errno {
            pub fn number(self) -> i32 {
                match self { $(Errno::$name => $number,)* }
            }

            /// `EIO` for a number that Varve never sends.
            pub fn from_number(number: i32) -> Errno {
                match number { $($number => Errno::$name,)* _ => Errno::EIO }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument list too long";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EBUSY = 16, "device or resource busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "cross-device link";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENOTTY = 25, "inappropriate ioctl for device";
    ETXTBSY = 26, "text file busy";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left on device";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    ERANGE = 34, "result too large for the buffer";
    ENAMETOOLONG = 36, "file name too long";
    ENOSYS = 38, "function not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many levels of symbolic links";
    ENODATA = 61, "no such extended attribute";
    EOVERFLOW = 75, "value too large";
    EOPNOTSUPP = 95, "operation not supported";
    ETIMEDOUT = 110, "timed out";
    EHOSTDOWN = 112, "the server is down";
    ESTALE = 116, "stale file handle";
    EDQUOT = 122, "quota exceeded";
}
