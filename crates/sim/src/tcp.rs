//! TCP end points in virtual time.
