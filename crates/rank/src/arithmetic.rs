//! Arithmetic of rank programs: unsigned 64-bit integers that saturate.
//!
//! Why: ranks are times and bytes, which are never negative, and a program must not fault.
//! Not here: the same operators in WebAssembly (`compile`).
//! Invariant: each operator gives a value for each pair of values.

/// An operator with two operands. Both are always computed, so that the cost does not depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Min,
    Max,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    And,
    Or,
}

impl Operator {
    /// The value for `a` and `b`; 1 stands for true and 0 for false.
    pub(crate) fn apply(self, a: u64, b: u64) -> u64 {
        match self {
            Self::Add => a.saturating_add(b),
            Self::Subtract => a.saturating_sub(b),
            Self::Multiply => a.saturating_mul(b),
            Self::Divide => a.checked_div(b).unwrap_or(u64::MAX),
            Self::Remainder => a.checked_rem(b).unwrap_or(a),
            Self::Min => a.min(b),
            Self::Max => a.max(b),
            Self::Less => u64::from(a < b),
            Self::LessEqual => u64::from(a <= b),
            Self::Greater => u64::from(a > b),
            Self::GreaterEqual => u64::from(a >= b),
            Self::Equal => u64::from(a == b),
            Self::NotEqual => u64::from(a != b),
            Self::And => u64::from(a != 0 && b != 0),
            Self::Or => u64::from(a != 0 || b != 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Operator;

    #[test]
    fn nothing_overflows() {
        let most = u64::MAX;
        assert_eq!(Operator::Add.apply(most, 1), most);
        assert_eq!(Operator::Subtract.apply(1, 2), 0);
        assert_eq!(Operator::Multiply.apply(1 << 40, 1 << 40), most);
        assert_eq!((Operator::Divide.apply(7, 2), Operator::Divide.apply(0, 0)), (3, most));
        assert_eq!((Operator::Remainder.apply(7, 2), Operator::Remainder.apply(7, 0)), (1, 7));
        assert_eq!((Operator::And.apply(2, 4), Operator::Or.apply(0, 4)), (1, 1));
    }
}
