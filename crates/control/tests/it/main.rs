//! Rate control between hosts that exchange real frames.

mod overlay;
