//! Bounds.
use crate::problem::Problem;
use crate::program::Program;
use crate::source::Mark;

pub(crate) fn not_backed(_places: &[(usize, Mark)], _program: &Program, _problems: &mut Vec<Problem>) {}
