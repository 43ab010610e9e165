//! Code of one function, and the cost of its worst path.
//!
//! Why: the cost is counted where instructions are written, so that the two cannot drift apart.
//! Not here: the module around it (`compile`).
//! Invariant: `cost` counts every instruction of the dearest path to here, and one more for each call.

use wasm_encoder::{BlockType, Function, Instruction, MemArg, ValType};

use super::helpers::Helper;
use super::{Layout, RECORD_ROOM, VARIABLE};
use crate::arithmetic::Operator;
use crate::packet::Field;
use crate::program::{Expression, MOST_CLASSES, Statement, Step, Variable};

pub(super) struct Code {
    function: Function,
    layout: Layout,
    /// Locals of the program, which stand between the record's address and the class's.
    locals: u32,
    cost: u64,
}

/// The local that holds the address of the packet's record.
const RECORD: u32 = 0;

impl Code {
    pub(super) fn new(locals: u32, layout: Layout) -> Self {
        let function = Function::new([(locals, ValType::I64), (1, ValType::I32)]);
        Self { function, layout, locals, cost: 1 } // a call costs one by itself
    }

    /// Keeps the address of the class's variables.
    pub(super) fn find_class(&mut self) {
        self.field(Field::Number);
        self.number(MOST_CLASSES - 1);
        self.call(Helper::Min);
        let (row, class) = (self.layout.row as i32, self.class());
        self.emit(Instruction::I32WrapI64);
        self.emit(Instruction::I32Const(row));
        self.emit(Instruction::I32Mul);
        self.emit(Instruction::LocalSet(class));
    }

    pub(super) fn block(&mut self, block: &[Statement]) {
        for statement in block {
            match statement {
                Statement::Assign(variable, value) => self.assign(*variable, value),
                Statement::If { condition, then, otherwise } => self.branch(condition, then, otherwise),
            }
        }
    }

    /// Leaves the rank on the stack.
    pub(super) fn rank(&mut self) {
        self.read(Variable::RANK);
    }

    /// The function, and its cost.
    pub(super) fn finish(mut self) -> (Function, u64) {
        self.function.instruction(&Instruction::End);
        (self.function, self.cost)
    }

    fn assign(&mut self, variable: Variable, value: &Expression) {
        match self.place(variable) {
            Place::Local(local) => {
                self.evaluate(value);
                self.emit(Instruction::LocalSet(local));
            }
            Place::Memory(memory) => {
                self.base(variable);
                self.evaluate(value);
                self.emit(Instruction::I64Store(memory));
            }
        }
    }

    fn branch(&mut self, condition: &Expression, then: &[Statement], otherwise: &[Statement]) {
        self.evaluate(condition);
        self.number(0);
        self.emit(Instruction::I64Ne);
        self.emit(Instruction::If(BlockType::Empty));
        let before = self.cost;
        self.block(then);
        let after_then = core::mem::replace(&mut self.cost, before);
        self.function.instruction(&Instruction::Else);
        self.block(otherwise);
        self.function.instruction(&Instruction::End);
        self.cost = self.cost.max(after_then);
    }

    fn evaluate(&mut self, expression: &Expression) {
        for &step in expression {
            match step {
                Step::Number(number) => self.number(number),
                Step::Field(field) => self.field(field),
                Step::Read(variable) => self.read(variable),
                Step::Not => {
                    self.emit(Instruction::I64Eqz);
                    self.emit(Instruction::I64ExtendI32U);
                }
                Step::Apply(operator) => self.apply(operator),
            }
        }
    }

    fn apply(&mut self, operator: Operator) {
        match Helper::of(operator) {
            Some(helper) => self.call(helper),
            None => self.compare(operator),
        }
    }

    /// An operator that says 1 or 0. Whether both or either of two operands are zero is what their least or most says.
    fn compare(&mut self, operator: Operator) {
        match operator {
            Operator::And => self.call(Helper::Min),
            Operator::Or => self.emit(Instruction::I64Or),
            _ => {}
        }
        if matches!(operator, Operator::And | Operator::Or) {
            self.number(0);
        }
        self.emit(match operator {
            Operator::Less => Instruction::I64LtU,
            Operator::LessEqual => Instruction::I64LeU,
            Operator::Greater => Instruction::I64GtU,
            Operator::GreaterEqual => Instruction::I64GeU,
            Operator::Equal => Instruction::I64Eq,
            _ => Instruction::I64Ne,
        });
        self.emit(Instruction::I64ExtendI32U);
    }

    fn read(&mut self, variable: Variable) {
        match self.place(variable) {
            Place::Local(local) => self.emit(Instruction::LocalGet(local)),
            Place::Memory(memory) => {
                self.base(variable);
                self.emit(Instruction::I64Load(memory));
            }
        }
    }

    fn field(&mut self, field: Field) {
        self.emit(Instruction::LocalGet(RECORD));
        self.emit(Instruction::I64Load(at(field.offset())));
    }

    fn number(&mut self, number: u64) {
        self.emit(Instruction::I64Const(number.cast_signed()));
    }

    /// Pushes the address that a variable's place in memory counts from.
    fn base(&mut self, variable: Variable) {
        let class = self.class();
        self.emit(match variable {
            Variable::Class(_) => Instruction::LocalGet(class),
            Variable::Node(_) | Variable::Local(_) => Instruction::I32Const(0),
        });
    }

    fn place(&self, variable: Variable) -> Place {
        match variable {
            Variable::Local(index) => Place::Local(RECORD + 1 + index),
            Variable::Node(index) => Place::Memory(at(RECORD_ROOM + index as usize * VARIABLE)),
            Variable::Class(index) => Place::Memory(at(self.layout.classes + index as usize * VARIABLE)),
        }
    }

    /// The local that holds how far the class's variables lie behind those of class 0.
    fn class(&self) -> u32 {
        RECORD + 1 + self.locals
    }

    fn call(&mut self, helper: Helper) {
        self.emit(Instruction::Call(helper as u32));
        self.cost += 1 + helper.cost();
    }

    fn emit(&mut self, instruction: Instruction<'_>) {
        self.function.instruction(&instruction);
        self.cost += 1;
    }
}

/// Where a variable is kept.
enum Place {
    Local(u32),
    Memory(MemArg),
}

/// Eight bytes at this distance from an address.
fn at(offset: usize) -> MemArg {
    MemArg { offset: offset as u64, align: 3, memory_index: 0 }
}
