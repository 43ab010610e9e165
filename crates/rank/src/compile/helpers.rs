//! Saturating arithmetic as functions of a module.
//!
//! Why: WebAssembly's operators wrap, and its division traps.
//! Not here: comparisons, which are one instruction (`code`).
//! Invariant: a helper gives what [`Operator::apply`] gives.

use wasm_encoder::{BlockType, Function, InstructionSink, ValType};

#[cfg(doc)]
use crate::arithmetic::Operator;

/// A function of two unsigned operands. Its number in the module is its place in [`Helper::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Helper {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Min,
    Max,
}

impl Helper {
    pub(super) const ALL: [Self; 7] =
        [Self::Add, Self::Subtract, Self::Multiply, Self::Divide, Self::Remainder, Self::Min, Self::Max];

    /// Most instructions that a call runs.
    pub(super) fn cost(self) -> u64 {
        match self {
            Self::Add => 9,
            Self::Subtract => 8,
            Self::Multiply => 20,
            Self::Divide | Self::Remainder | Self::Min | Self::Max => 6,
        }
    }

    pub(super) fn body(self) -> Function {
        let sum = u32::from(self == Self::Add);
        let mut function = Function::new([(sum, ValType::I64)]);
        let mut code = function.instructions();
        match self {
            Self::Add => add(&mut code),
            Self::Subtract => subtract(&mut code),
            Self::Multiply => multiply(&mut code),
            Self::Divide => divide(&mut code),
            Self::Remainder => remainder(&mut code),
            Self::Min => {
                code.local_get(A).local_get(B).local_get(A).local_get(B).i64_lt_u().select();
            }
            Self::Max => {
                code.local_get(A).local_get(B).local_get(A).local_get(B).i64_gt_u().select();
            }
        }
        code.end();
        function
    }
}

const A: u32 = 0;
const B: u32 = 1;
const SUM: u32 = 2;
/// The largest number, read as unsigned.
const MOST: i64 = -1;

/// A sum that has wrapped is less than either operand.
fn add(code: &mut InstructionSink<'_>) {
    code.i64_const(MOST);
    code.local_get(A).local_get(B).i64_add().local_tee(SUM);
    code.local_get(SUM).local_get(A).i64_lt_u();
    code.select();
}

fn subtract(code: &mut InstructionSink<'_>) {
    code.local_get(A).local_get(B).i64_sub();
    code.i64_const(0);
    code.local_get(A).local_get(B).i64_gt_u();
    code.select();
}

/// Operands below 2^32 need no check, which divides.
fn multiply(code: &mut InstructionSink<'_>) {
    let value = BlockType::Result(ValType::I64);
    code.local_get(A).local_get(B).i64_or().i64_const(32).i64_shr_u().i64_eqz();
    code.if_(value).local_get(A).local_get(B).i64_mul();
    code.else_().local_get(A).i64_eqz();
    code.if_(value).i64_const(0);
    code.else_();
    code.i64_const(MOST);
    code.local_get(A).local_get(B).i64_mul();
    code.local_get(B).i64_const(MOST).local_get(A).i64_div_u().i64_gt_u();
    code.select();
    code.end().end();
}

fn divide(code: &mut InstructionSink<'_>) {
    code.local_get(B).i64_eqz();
    code.if_(BlockType::Result(ValType::I64)).i64_const(MOST);
    code.else_().local_get(A).local_get(B).i64_div_u();
    code.end();
}

fn remainder(code: &mut InstructionSink<'_>) {
    code.local_get(B).i64_eqz();
    code.if_(BlockType::Result(ValType::I64)).local_get(A);
    code.else_().local_get(A).local_get(B).i64_rem_u();
    code.end();
}
