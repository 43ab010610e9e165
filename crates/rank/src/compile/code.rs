//! Code of one function, and the cost of its worst path.
//!
//! Why: the cost is counted where instructions are written, so that the two cannot drift apart.
//! Not here: the module around it (`compile`).
//! Invariant: `cost` counts every instruction of the worst path to here, and one more for each call.

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

    /// Keeps how far the class's variables lie behind those of class 0.
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

    /// Both of two operands are true if the lesser is, and either is if any of their bits is set.
    fn apply(&mut self, operator: Operator) {
        match operator {
            Operator::Add => self.call(Helper::Add),
            Operator::Subtract => self.call(Helper::Subtract),
            Operator::Multiply => self.call(Helper::Multiply),
            Operator::Divide => self.call(Helper::Divide),
            Operator::Remainder => self.call(Helper::Remainder),
            Operator::Min => self.call(Helper::Min),
            Operator::Max => self.call(Helper::Max),
            Operator::Less => self.compare(Instruction::I64LtU),
            Operator::LessEqual => self.compare(Instruction::I64LeU),
            Operator::Greater => self.compare(Instruction::I64GtU),
            Operator::GreaterEqual => self.compare(Instruction::I64GeU),
            Operator::Equal => self.compare(Instruction::I64Eq),
            Operator::NotEqual => self.compare(Instruction::I64Ne),
            Operator::And => {
                self.call(Helper::Min);
                self.number(0);
                self.compare(Instruction::I64Ne);
            }
            Operator::Or => {
                self.emit(Instruction::I64Or);
                self.number(0);
                self.compare(Instruction::I64Ne);
            }
        }
    }

    fn compare(&mut self, comparison: Instruction<'_>) {
        self.emit(comparison);
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
