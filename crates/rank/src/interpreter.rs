//! The interpreter: what a program means.
//!
//! Why: the engine runs programs by it, in `sim` and live, and the compiler is tested against it.
//! Not here: code for other hosts (`compile`).
//! Invariant: the result depends on nothing but the program and the packets so far; a call does not allocate.

use std::sync::Arc;

use crate::packet::{Field, Packet};
use crate::program::{Expression, Function, MOST_CLASSES, Program, Statement, Step, Variable};

/// A program with the state of one node.
#[derive(Clone, Debug)]
pub struct Interpreter {
    program: Arc<Program>,
    node: Vec<u64>,
    /// The variables of each class in turn.
    classes: Vec<u64>,
    /// Room for a call.
    locals: Vec<u64>,
    stack: Vec<u64>,
}

/// One call of a function.
struct Call<'a> {
    packet: &'a Packet,
    node: &'a mut [u64],
    class: &'a mut [u64],
    locals: &'a mut [u64],
    stack: &'a mut Vec<u64>,
}

impl Interpreter {
    /// A node in its first state, with state for this many classes: classes of this number and beyond share the state of the last, and
    /// so do those beyond [`MOST_CLASSES`].
    #[must_use]
    pub fn new(program: Arc<Program>, classes: u64) -> Self {
        let (enqueue, dequeue) = (&program.enqueue, &program.dequeue);
        let locals = enqueue.locals.max(dequeue.locals) as usize;
        let stack = enqueue.deepest().max(dequeue.deepest());
        Self {
            node: program.node.clone(),
            classes: program.class.repeat(classes.clamp(1, MOST_CLASSES) as usize),
            locals: vec![0; locals],
            stack: Vec::with_capacity(stack),
            program,
        }
    }

    /// Whether both run the same program.
    #[must_use]
    pub fn runs_as(&self, other: &Self) -> bool {
        self.program == other.program
    }

    /// Takes over the state of another node with the same program and as many classes.
    pub fn take_state(&mut self, other: &Self) {
        self.node.copy_from_slice(&other.node);
        self.classes.copy_from_slice(&other.classes);
    }

    /// Bytes of its state.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let values = self.node.len() + self.classes.len() + self.locals.len() + self.stack.capacity();
        values * size_of::<u64>()
    }

    /// The rank of a packet that arrives.
    pub fn enqueue(&mut self, packet: &Packet) -> u64 {
        self.call(|program| &program.enqueue, packet)
    }

    /// Updates the state for a packet that leaves.
    pub fn dequeue(&mut self, packet: &Packet) {
        self.call(|program| &program.dequeue, packet);
    }

    fn call(&mut self, function: fn(&Program) -> &Function, packet: &Packet) -> u64 {
        let Self { program, node, classes, locals, stack } = self;
        let function = function(program);
        let row = program.class.len();
        let last = classes.len().checked_div(row).map_or(0, |classes| classes - 1);
        let at = (packet.get(Field::Number) as usize).min(last) * row;
        let locals = &mut locals[..function.locals as usize];
        locals.fill(0);
        let mut call = Call { packet, node, class: &mut classes[at..at + row], locals, stack };
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
