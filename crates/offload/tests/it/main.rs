//! Programs that behave, and programs that do not.

mod hostile;
mod runs;
mod support;
mod texts;
mod verified;
