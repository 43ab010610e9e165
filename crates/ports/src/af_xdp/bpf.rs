//! The XDP program that redirects an interface's packets to the AF_XDP sockets, written without a compiler or a library.
//!
//! Why: AF_XDP receives only packets that an XDP program redirects; six instructions are enough.
//! From: bpf(2), `include/uapi/linux/bpf.h`; attached as a link, which ends with its descriptor, so
//! that a crash leaves nothing on the interface.
//! Not here: filtering: all packets of a queue with a socket go to the socket, all others to the kernel.
//! Invariant: every structure given to the kernel has the stated length and is zero where unused.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The hook that the program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// In the driver, before the kernel makes a packet buffer.
    Driver,
    /// Behind the driver: works on every interface, but is slower.
    Generic,
}

/// The program on the interface and its table of sockets; detached when dropped.
#[derive(Debug)]
pub(super) struct Redirect {
    sockets: Sockets,
    _program: OwnedFd,
    link: OwnedFd,
}

/// The program's table of sockets, by queue; it does not keep the program on the interface.
#[derive(Debug)]
pub(super) struct Sockets(OwnedFd);

impl Redirect {
    /// Attaches to interface number `interface` of the calling thread's network namespace, for its first `queues` queues.
    pub(super) fn attach(interface: u32, queues: u32, hook: Hook) -> io::Result<Self> {
        let sockets = Sockets(socket_table(queues)?);
        let program = load(&redirect_to(&sockets.0))?;
        let flags = match hook {
            Hook::Driver => XDP_FLAGS_DRV_MODE,
            Hook::Generic => XDP_FLAGS_SKB_MODE,
        };
        let link = attach(&program, interface, flags)?;
        Ok(Self { sockets, _program: program, link })
    }

    /// The BPF link, which keeps the program on the interface.
    pub(super) fn link(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    /// The table, to be changed later.
    pub(super) fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    /// Only the table: the program leaves the interface unless another process has its link.
    pub(super) fn into_sockets(self) -> Sockets {
        self.sockets
    }
}

impl Sockets {
    /// Redirects packets of `queue` to `socket`.
    pub(super) fn set(&self, queue: u32, socket: &OwnedFd) -> io::Result<()> {
        let value = socket.as_raw_fd().cast_unsigned();
        let mut attr = Attr::new();
        attr.u32(0, self.0.as_raw_fd().cast_unsigned());
        attr.pointer(8, std::ptr::from_ref(&queue));
        attr.pointer(16, std::ptr::from_ref(&value));
        // SAFETY: key and value are live `u32`s, the sizes that the table was made with.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attr, 32) }.map(drop)
    }
}

/// `struct bpf_attr` as bytes, since each command has its own layout.
#[repr(align(8))]
struct Attr([u8; Self::LEN]);

impl Attr {
    const LEN: usize = 128;

    fn new() -> Self {
        Self([0; Self::LEN])
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn pointer<T>(&mut self, at: usize, value: *const T) {
        self.0[at..at + 8].copy_from_slice(&(value as u64).to_ne_bytes());
    }
}

/// Makes the system call.
///
/// # Safety
/// Pointers in `attr` must point to live memory of the size that `command` reads or writes there.
unsafe fn bpf(command: u32, attr: &mut Attr, len: usize) -> io::Result<libc::c_int> {
    assert!(len <= Attr::LEN, "a command's structure fits");
    // SAFETY: `attr` is live, aligned and at least `len` long; the caller guarantees its pointers.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, attr.0.as_mut_ptr(), len) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as libc::c_int) }
}

/// Makes the system call for a command that returns a new descriptor.
///
/// # Safety
/// As for [`bpf`], and `command` must return a descriptor.
unsafe fn bpf_fd(command: u32, attr: &mut Attr, len: usize) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let fd = unsafe { bpf(command, attr, len) }?;
    // SAFETY: the kernel has just made it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a table from queue number to socket.
fn socket_table(entries: u32) -> io::Result<OwnedFd> {
    let mut attr = Attr::new();
    // map_type, key_size, value_size, max_entries
    for (index, value) in [BPF_MAP_TYPE_XSKMAP, 4, 4, entries].into_iter().enumerate() {
        attr.u32(index * 4, value);
    }
    // SAFETY: no pointers in this command; it returns a descriptor.
    unsafe { bpf_fd(BPF_MAP_CREATE, &mut attr, 72) }
}

/// The program `return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS)`.
fn redirect_to(sockets: &OwnedFd) -> [Instruction; 6] {
    let (ctx, sockets) = (1, sockets.as_raw_fd());
    [
        Instruction::new(LOAD_WORD, 2, ctx, RX_QUEUE_INDEX, 0),
        Instruction::new(LOAD_IMMEDIATE_64, 1, BPF_PSEUDO_MAP_FD, 0, sockets),
        Instruction::new(0, 0, 0, 0, 0), // upper half of the load before
        Instruction::new(MOVE_IMMEDIATE, 3, 0, 0, XDP_PASS),
        Instruction::new(CALL, 0, 0, 0, BPF_FUNC_REDIRECT_MAP),
        Instruction::new(EXIT, 0, 0, 0, 0),
    ]
}

fn load(code: &[Instruction]) -> io::Result<OwnedFd> {
    let licence = c"GPL";
    let mut attr = Attr::new();
    attr.u32(0, BPF_PROG_TYPE_XDP);
    attr.u32(4, code.len() as u32);
    attr.pointer(8, code.as_ptr());
    attr.pointer(16, licence.as_ptr());
    // SAFETY: `code` holds the stated number of instructions of eight bytes, `licence` ends with zero;
    // both are live. The command returns a descriptor.
    unsafe { bpf_fd(BPF_PROG_LOAD, &mut attr, 128) }
}

fn attach(program: &OwnedFd, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let mut attr = Attr::new();
    for (index, value) in
        [program.as_raw_fd().cast_unsigned(), interface, BPF_XDP, flags].into_iter().enumerate()
    {
        attr.u32(index * 4, value);
    }
    // SAFETY: no pointers in this command; it returns a descriptor.
    unsafe { bpf_fd(BPF_LINK_CREATE, &mut attr, 64) }
}

/// `struct bpf_insn`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Instruction {
    code: u8,
    /// Destination in the lower half, source in the upper.
    registers: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    const fn new(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Self {
        Self { code, registers: from << 4 | to, offset, immediate }
    }
}

const BPF_MAP_CREATE: u32 = 0;
const BPF_MAP_UPDATE_ELEM: u32 = 2;
const BPF_PROG_LOAD: u32 = 5;
const BPF_LINK_CREATE: u32 = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
/// The attach type.
const BPF_XDP: u32 = 37;
const XDP_FLAGS_SKB_MODE: u32 = 2;
const XDP_FLAGS_DRV_MODE: u32 = 4;

const LOAD_WORD: u8 = 0x61;
const LOAD_IMMEDIATE_64: u8 = 0x18;
const MOVE_IMMEDIATE: u8 = 0xb7;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Marks a 64-bit load whose value is a table's descriptor.
const BPF_PSEUDO_MAP_FD: u8 = 1;
const BPF_FUNC_REDIRECT_MAP: i32 = 51;
const XDP_PASS: i32 = 2;
/// Offset of `rx_queue_index` in `struct xdp_md`.
const RX_QUEUE_INDEX: i16 = 16;
