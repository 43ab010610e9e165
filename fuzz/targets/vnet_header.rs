//! A virtio-net header and a frame, as a TAP gives them: refused, or sent whole, without changing what was classified.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_wire::{
    FlowKey, Offload, Parsed, VnetHeader, ones_complement_sum, parse, segment, supersegment,
};

fuzz_target!(|data: &[u8]| {
    let Ok((vnet, frame)) = VnetHeader::read(data) else { return };
    let [bytes @ .., _, _] = vnet.to_bytes();
    assert_eq!(bytes, data[..10], "a header is written as it was read");
    let Ok(parsed) = parse(frame) else { return };
    let Ok(offload) = vnet.offload(frame, &parsed) else { return };

    let header = usize::from(offload.header);
    let payload = frame.len() - header;
    let mut out = vec![0; frame.len()];
    let (len, again) =
        supersegment(frame, &offload, 0, payload as u32, &mut out).expect("a whole frame can be sent");
    assert_eq!(len, frame.len());
    assert_eq!(
        again.offload(&out, &parse(&out).expect("it parses again")).expect("its header is valid again"),
        offload,
        "what is asked of the uplink is what the tenant asked",
    );

    let step = if offload.segment == 0 { payload } else { offload.segment.into() };
    for start in (0..payload).step_by(step) {
        let part = step.min(payload - start);
        let len =
            segment(frame, &offload, start as u32, part as u32, &mut out).expect("each segment can be sent");
        assert_eq!(len, header + part);
        check(&out[..len], &parsed, &offload);
        if header > 0 {
            assert_eq!(out[header..len], frame[header + start..][..part], "payload is not touched");
        }
    }
});

/// A segment belongs to the same flow, and its headers are right.
fn check(segment: &[u8], original: &Parsed, offload: &Offload) {
    let parsed = parse(segment).expect("a segment parses");
    assert_eq!(FlowKey::of(&parsed), FlowKey::of(original), "what was classified is not touched");
    if !offload.kind.is_segmented() {
        return;
    }
    let ip = parsed.ip.expect("a segment is an IP packet");
    assert_eq!(ip.end as usize, segment.len(), "the length is right");
    if ip.src.is_ipv4() {
        let l3 = usize::from(parsed.l3);
        let header = &segment[l3..l3 + usize::from(segment[l3] & 15) * 4];
        assert_eq!(ones_complement_sum(header), 0xffff, "the header checksum verifies");
    }
}
