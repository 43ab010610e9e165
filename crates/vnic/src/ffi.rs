//! The client for programs in C: `include/plimsoll_vnic.h` says what each function does.
//!
//! Why: most programs that bypass the kernel are not written in Rust.
//! From: the header, with which a test compiles a C program.
//! Not here: anything that the Rust client does not do.
//! Invariant: no function keeps a pointer after it returns; what fails sets `errno` and answers -1, or NULL.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use plimsoll_wire::VnetHeader;
use plimsoll_wire::doorbell::PacketMetadata;

use crate::client::Vnic;
use crate::error::VnicError;
use crate::layout::{BUFFER, MAX_FRAME, MAX_PIECES};
use crate::rules::{FlowSpec, RuleCounts};
use crate::sender::{Completion, Poster, Sender};

/// A flow, as the header lays it out.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PlimsollFlow {
    family: u8,
    protocol: u8,
    dscp: u8,
    has_ports: u8,
    vlan: u16,
    src_port: u16,
    dst_port: u16,
    src: [u8; 16],
    dst: [u8; 16],
}

/// A completion, as the header lays it out.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PlimsollCompletion {
    queue: u32,
    status: u16,
}

/// Metadata of packets, as the header lays it out.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PlimsollMetadata {
    present: u32,
    priority: u32,
    user: u32,
    app: u32,
    cgroup: u64,
}

/// Counters of the cache of rules, as the header lays them out.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PlimsollRules {
    hits: u64,
    misses: u64,
    pushed: u64,
    ended: u64,
}

/// Connects to a tenant's socket.
///
/// # Safety
/// `path` is a string that ends in a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_connect(path: *const c_char) -> *mut Vnic {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    match Vnic::connect(OsStr::from_bytes(path.to_bytes())) {
        Ok(vnic) => Box::into_raw(Box::new(vnic)),
        Err(error) => {
            set_errno(errno_of(&error));
            std::ptr::null_mut()
        }
    }
}

/// Closes a vNIC.
///
/// # Safety
/// `vnic` comes from [`plimsoll_vnic_connect`] and is not used afterwards; NULL is nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_close(vnic: *mut Vnic) {
    if !vnic.is_null() {
        // SAFETY: the caller's promise: the box that `connect` gave away comes back, once.
        drop(unsafe { Box::from_raw(vnic) });
    }
}

/// Writes the interface's hardware address.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile; `mac` has room for six bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_mac(vnic: *const Vnic, mac: *mut u8) {
    // SAFETY: the caller's promise.
    let (vnic, mac) = unsafe { (&*vnic, std::slice::from_raw_parts_mut(mac, 6)) };
    mac.copy_from_slice(&vnic.identity().mac);
}

/// Asks for a flow queue.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile; `flow` points to a flow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_open_flow(vnic: *mut Vnic, flow: *const PlimsollFlow) -> c_int {
    // SAFETY: the caller's promise.
    let (vnic, flow) = unsafe { (&mut *vnic, &*flow) };
    let Some(spec) = spec(flow) else { return fail(libc::EINVAL) };
    numbered(vnic.open_flow(&spec))
}

/// Answers the flow queue for a flow's packets, by the daemon's rules.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile; `flow` points to a flow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_queue_for(vnic: *mut Vnic, flow: *const PlimsollFlow) -> c_int {
    // SAFETY: the caller's promise.
    let (vnic, flow) = unsafe { (&mut *vnic, &*flow) };
    let Some(spec) = spec(flow) else { return fail(libc::EINVAL) };
    numbered(vnic.queue_for(&spec))
}

/// Answers the flow queue for a frame, by the daemon's rules.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile; `frame` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_classify(vnic: *mut Vnic, frame: *const u8, len: usize) -> c_int {
    if frame.is_null() || len > MAX_FRAME {
        return fail(libc::EMSGSIZE);
    }
    // SAFETY: the caller's promise.
    let (vnic, frame) = unsafe { (&mut *vnic, std::slice::from_raw_parts(frame, len)) };
    numbered(vnic.classify(frame))
}

/// Writes what the cache of rules has done.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile; `into` points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_rules(vnic: *const Vnic, into: *mut PlimsollRules) {
    // SAFETY: the caller's promise.
    let counts = unsafe { &*vnic }.rule_counts();
    let RuleCounts { hits, misses, pushed, ended } = counts;
    // SAFETY: the caller's promise.
    unsafe { into.write(PlimsollRules { hits, misses, pushed, ended }) };
}

/// Gives a flow queue back.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_close_flow(vnic: *mut Vnic, queue: u32) -> c_int {
    // SAFETY: the caller's promise.
    let vnic = unsafe { &mut *vnic };
    vnic.close_flow(queue).map_or_else(|error| fail(errno_of(&error)), |()| 0)
}

/// Copies a frame and posts it.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile; `frame` points to `len` bytes; `offload` is NULL or points to
/// one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_send(
    vnic: *mut Vnic,
    queue: u32,
    frame: *const u8,
    len: usize,
    offload: *const VnetHeader,
    tag: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { send(&mut *vnic, queue, frame, len, offload, tag) }
}

/// Copies a frame that lies in several places, and posts it.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile; `parts` points to `count` vectors, each of which names bytes;
/// `offload` is NULL or points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_sendv(
    vnic: *mut Vnic,
    queue: u32,
    parts: *const libc::iovec,
    count: usize,
    offload: *const VnetHeader,
    tag: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { send_gathered(&mut *vnic, queue, parts, count, offload, tag, PacketMetadata::default()) }
}

/// States the metadata of a flow queue's packets.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile; `metadata` points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_set_metadata(
    vnic: *mut Vnic,
    queue: u32,
    metadata: *const PlimsollMetadata,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { set_metadata(&mut *vnic, queue, &*metadata) }
}

/// Copies a frame that lies in several places, and posts it with metadata of its own.
///
/// # Safety
/// As for [`plimsoll_vnic_sendv`]; `metadata` points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_send_described(
    vnic: *mut Vnic,
    queue: u32,
    parts: *const libc::iovec,
    count: usize,
    offload: *const VnetHeader,
    tag: u32,
    metadata: *const PlimsollMetadata,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { send_gathered(&mut *vnic, queue, parts, count, offload, tag, metadata_of(&*metadata)) }
}

/// Rings the doorbell: the daemon learns of everything posted.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_ring(vnic: *mut Vnic) -> c_int {
    // SAFETY: the caller's promise.
    ring(unsafe { &mut *vnic })
}

/// Takes completions.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile; `into` is NULL or has room for `most`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_poll(
    vnic: *mut Vnic,
    into: *mut PlimsollCompletion,
    most: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let vnic = unsafe { &mut *vnic };
    // SAFETY: the caller's promise.
    unsafe { take_completions(|| vnic.next_completion(), into, most) }
}

/// Copies the oldest received frame out.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile; `into` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_receive(vnic: *mut Vnic, into: *mut u8, len: usize) -> isize {
    if into.is_null() {
        return fail(libc::EINVAL) as isize;
    }
    // SAFETY: the caller's promise: room that it may read as well, as it gave it away for this call.
    let (vnic, into) = unsafe { (&mut *vnic, std::slice::from_raw_parts_mut(into, len)) };
    match vnic.receive(into) {
        Some(len) => isize::try_from(len).unwrap_or(isize::MAX),
        None => fail(libc::EAGAIN) as isize,
    }
}

/// Sleeps until a frame has completed or has arrived.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_wait(vnic: *mut Vnic, millis: c_int) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { &mut *vnic }.wait(millis) {
        Ok(news) => c_int::from(news),
        Err(error) => fail(errno_of(&error)),
    }
}

/// Answers the descriptor that becomes readable when [`plimsoll_vnic_wait`] would end.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_fd(vnic: *const Vnic) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { &*vnic }.as_raw_fd()
}

/// Makes a poster, with which another thread sends.
///
/// # Safety
/// `vnic` is open, and no other thread uses it meanwhile; `queues` points to `count` numbers, or `count` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_vnic_poster(
    vnic: *mut Vnic,
    queues: *const u32,
    count: usize,
    buffers: usize,
) -> *mut Poster {
    let queues = if queues.is_null() || count == 0 {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(queues, count) }
    };
    // SAFETY: the caller's promise.
    match unsafe { &mut *vnic }.poster(queues, buffers) {
        Some(poster) => Box::into_raw(Box::new(poster)),
        None => {
            set_errno(libc::ENOSPC);
            std::ptr::null_mut()
        }
    }
}

/// Closes a poster.
///
/// # Safety
/// `poster` comes from [`plimsoll_vnic_poster`] and is not used afterwards; NULL is nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_poster_close(poster: *mut Poster) {
    if !poster.is_null() {
        // SAFETY: the caller's promise: the box that `poster` gave away comes back, once.
        drop(unsafe { Box::from_raw(poster) });
    }
}

/// Copies a frame and posts it.
///
/// # Safety
/// `poster` is open, and no other thread uses it meanwhile; `frame` and `offload` as for [`plimsoll_vnic_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_poster_send(
    poster: *mut Poster,
    queue: u32,
    frame: *const u8,
    len: usize,
    offload: *const VnetHeader,
    tag: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { send(&mut *poster, queue, frame, len, offload, tag) }
}

/// Copies a frame that lies in several places, and posts it.
///
/// # Safety
/// `poster` is open, and no other thread uses it meanwhile; `parts` and `offload` as for [`plimsoll_vnic_sendv`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_poster_sendv(
    poster: *mut Poster,
    queue: u32,
    parts: *const libc::iovec,
    count: usize,
    offload: *const VnetHeader,
    tag: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { send_gathered(&mut *poster, queue, parts, count, offload, tag, PacketMetadata::default()) }
}

/// States the metadata of a flow queue's packets.
///
/// # Safety
/// `poster` is open, and no other thread uses it meanwhile; `metadata` points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_poster_set_metadata(
    poster: *mut Poster,
    queue: u32,
    metadata: *const PlimsollMetadata,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { set_metadata(&mut *poster, queue, &*metadata) }
}

/// Copies a frame that lies in several places, and posts it with metadata of its own.
///
/// # Safety
/// As for [`plimsoll_poster_sendv`]; `metadata` points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_poster_send_described(
    poster: *mut Poster,
    queue: u32,
    parts: *const libc::iovec,
    count: usize,
    offload: *const VnetHeader,
    tag: u32,
    metadata: *const PlimsollMetadata,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { send_gathered(&mut *poster, queue, parts, count, offload, tag, metadata_of(&*metadata)) }
}

/// Rings the thread's doorbell: the daemon learns of everything that this thread has posted.
///
/// # Safety
/// `poster` is open, and no other thread uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_poster_ring(poster: *mut Poster) -> c_int {
    // SAFETY: the caller's promise.
    ring(unsafe { &mut *poster })
}

/// Takes the completions of this thread's frames that the vNIC's thread has handed on.
///
/// # Safety
/// `poster` is open, and no other thread uses it meanwhile; `into` is NULL or has room for `most`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_poster_poll(
    poster: *mut Poster,
    into: *mut PlimsollCompletion,
    most: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let poster = unsafe { &mut *poster };
    // SAFETY: the caller's promise.
    unsafe { take_completions(|| poster.next_completion(), into, most) }
}

/// Sleeps until a frame of this thread's has completed, and takes its completion.
///
/// # Safety
/// `poster` is open, and no other thread uses it meanwhile; `into` is NULL or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_poster_wait(
    poster: *mut Poster,
    millis: c_int,
    into: *mut PlimsollCompletion,
) -> c_int {
    let most = u64::try_from(millis).map_or(Duration::MAX, Duration::from_millis);
    // SAFETY: the caller's promise.
    match unsafe { &mut *poster }.wait(most) {
        Ok(mut done) => {
            // SAFETY: the caller's promise.
            let taken = unsafe { take_completions(|| done.take(), into, 1) };
            c_int::from(taken > 0)
        }
        Err(error) => fail(errno_of(&error)),
    }
}

/// # Safety
/// `frame` points to `len` bytes; `offload` is NULL or points to one.
unsafe fn send(
    sender: &mut Sender,
    queue: u32,
    frame: *const u8,
    len: usize,
    offload: *const VnetHeader,
    tag: u32,
) -> c_int {
    if frame.is_null() || len > MAX_FRAME {
        return fail(libc::EMSGSIZE);
    }
    // SAFETY: the caller's promise.
    let (frame, offload) = unsafe { (std::slice::from_raw_parts(frame, len), offload.as_ref()) };
    let offload = offload.copied().unwrap_or_default();
    sender.send_with(queue, frame, &offload, tag).map_or_else(|_| fail(libc::EAGAIN), |()| 0)
}

/// # Safety
/// `parts` points to `count` vectors, each of which names bytes; `offload` is NULL or points to one.
unsafe fn send_gathered(
    sender: &mut Sender,
    queue: u32,
    parts: *const libc::iovec,
    count: usize,
    offload: *const VnetHeader,
    tag: u32,
    metadata: PacketMetadata,
) -> c_int {
    if parts.is_null() || count == 0 || count > MAX_PIECES {
        return fail(libc::EMSGSIZE);
    }
    // SAFETY: the caller's promise.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) };
    let mut slices: [&[u8]; MAX_PIECES] = [&[]; MAX_PIECES];
    for (slice, part) in slices.iter_mut().zip(parts.iter().filter(|part| part.iov_len > 0)) {
        if part.iov_base.is_null() || part.iov_len > MAX_FRAME {
            return fail(libc::EMSGSIZE);
        }
        // SAFETY: the caller's promise.
        *slice = unsafe { std::slice::from_raw_parts(part.iov_base.cast(), part.iov_len) };
    }
    if slices.iter().map(|slice| slice.len().div_ceil(BUFFER)).sum::<usize>() > MAX_PIECES {
        return fail(libc::EMSGSIZE);
    }
    // SAFETY: the caller's promise.
    let offload = unsafe { offload.as_ref() }.copied().unwrap_or_default();
    let sent = sender.send_described(queue, &slices[..count], &offload, tag, &metadata);
    sent.map_or_else(|_| fail(libc::EAGAIN), |()| 0)
}

fn set_metadata(sender: &mut Sender, queue: u32, metadata: &PlimsollMetadata) -> c_int {
    let set = sender.set_metadata(queue, &metadata_of(metadata));
    set.map_or_else(|_| fail(libc::EAGAIN), |()| 0)
}

fn ring(sender: &mut Sender) -> c_int {
    match sender.ring() {
        Ok(true) => 0,
        Ok(false) => fail(libc::EAGAIN),
        Err(error) => fail(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// # Safety
/// `into` is NULL or has room for `most`.
unsafe fn take_completions(
    mut next: impl FnMut() -> Option<Completion>,
    into: *mut PlimsollCompletion,
    most: usize,
) -> usize {
    let mut count = 0;
    while count < most {
        let Some(done) = next() else { break };
        if !into.is_null() {
            let done = PlimsollCompletion { queue: done.queue, status: done.status as u16 };
            // SAFETY: the caller's promise, and `count < most`.
            unsafe { into.add(count).write(done) };
        }
        count += 1;
    }
    count
}

fn numbered(queue: Result<u32, VnicError>) -> c_int {
    match queue {
        Ok(queue) => c_int::try_from(queue).unwrap_or(c_int::MAX),
        Err(error) => fail(errno_of(&error)),
    }
}

fn spec(flow: &PlimsollFlow) -> Option<FlowSpec> {
    let four = |bytes: &[u8; 16]| [bytes[0], bytes[1], bytes[2], bytes[3]].into();
    let addresses = match flow.family {
        0 => None,
        4 => Some((four(&flow.src), four(&flow.dst))),
        6 => Some((flow.src.into(), flow.dst.into())),
        _ => return None,
    };
    Some(FlowSpec {
        addresses,
        protocol: addresses.map(|_| flow.protocol),
        ports: (flow.has_ports != 0).then_some((flow.src_port, flow.dst_port)),
        dscp: flow.dscp,
        vlan: flow.vlan,
    })
}

fn metadata_of(metadata: &PlimsollMetadata) -> PacketMetadata {
    let &PlimsollMetadata { present, priority, user, app, cgroup } = metadata;
    let all =
        PacketMetadata { priority: Some(priority), cgroup: Some(cgroup), user: Some(user), app: Some(app) };
    // Only the four lowest bits mean something.
    all.only(present as u8)
}

fn errno_of(error: &VnicError) -> c_int {
    match error {
        VnicError::Connect { source, .. } | VnicError::Io(source) => {
            source.raw_os_error().unwrap_or_else(|| match source.kind() {
                io::ErrorKind::TimedOut => libc::ETIMEDOUT,
                _ => libc::ECONNRESET,
            })
        }
        VnicError::Occupied { .. } => libc::EBUSY,
        VnicError::Layout(_) | VnicError::Answer { .. } => libc::EPROTO,
        VnicError::NotOpened(_) => libc::ENOSPC,
        VnicError::Closed => libc::EPIPE,
    }
}

fn fail(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

fn set_errno(errno: c_int) {
    nix::errno::Errno::from_raw(errno).set();
}
