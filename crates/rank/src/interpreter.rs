//! The interpreter: what a program means.
//!
//! Why: the compiler is tested against it.
//! Not here: speed (`compile`).
//! Invariant: the result depends on nothing but the program and the packets so far.

use crate::packet::{Field, Packet};
use crate::program::{Expression, Function, MOST_CLASSES, Program, Statement, Step, Variable};

/// A program with the state of one node.
#[derive(Clone, Debug)]
pub struct Interpreter<'a> {
    program: &'a Program,
    node: Vec<u64>,
    /// The variables of each class in turn.
    classes: Vec<u64>,
}

/// One call of a function.
struct Call<'a> {
    packet: &'a Packet,
    node: &'a mut [u64],
    class: &'a mut [u64],
    locals: Vec<u64>,
    stack: Vec<u64>,
}

impl<'a> Interpreter<'a> {
    /// A node in its first state.
    #[must_use]
    pub fn new(program: &'a Program) -> Self {
        let classes = program.class.repeat(MOST_CLASSES as usize);
        Self { program, node: program.node.clone(), classes }
    }

    /// The rank of a packet that arrives.
    pub fn enqueue(&mut self, packet: &Packet) -> u64 {
        self.call(&self.program.enqueue, packet)
    }

    /// Updates the state for a packet that leaves.
    pub fn dequeue(&mut self, packet: &Packet) {
        self.call(&self.program.dequeue, packet);
    }

    fn call(&mut self, function: &Function, packet: &Packet) -> u64 {
        let row = self.program.class.len();
        let at = packet.get(Field::Number).min(MOST_CLASSES - 1) as usize * row;
        let mut call = Call {
            packet,
            node: &mut self.node,
            class: &mut self.classes[at..at + row],
            locals: vec![0; function.locals as usize],
            stack: Vec::new(),
        };
        call.run(&function.body);
        call.read(Variable::RANK)
    }
}

impl Call<'_> {
    fn run(&mut self, block: &[Statement]) {
        for statement in block {
            match statement {
                Statement::Assign(variable, value) => {
                    let value = self.evaluate(value);
                    *self.place(*variable) = value;
                }
                Statement::If { condition, then, otherwise } => {
                    let holds = self.evaluate(condition) != 0;
                    self.run(if holds { then } else { otherwise });
                }
            }
        }
    }

    fn evaluate(&mut self, expression: &Expression) -> u64 {
        for &step in expression {
            let value = match step {
                Step::Number(number) => number,
                Step::Field(field) => self.packet.get(field),
                Step::Read(variable) => self.read(variable),
                Step::Not => u64::from(self.pop() == 0),
                Step::Apply(operator) => {
                    let b = self.pop();
                    operator.apply(self.pop(), b)
                }
            };
            self.stack.push(value);
        }
        self.pop()
    }

    fn pop(&mut self) -> u64 {
        self.stack.pop().expect("the parser balances each expression")
    }

    fn read(&mut self, variable: Variable) -> u64 {
        *self.place(variable)
    }

    fn place(&mut self, variable: Variable) -> &mut u64 {
        match variable {
            Variable::Node(at) => &mut self.node[at as usize],
            Variable::Class(at) => &mut self.class[at as usize],
            Variable::Local(at) => &mut self.locals[at as usize],
        }
    }
}
