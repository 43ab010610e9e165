//! Frames: headers, checksums, segmentation.
