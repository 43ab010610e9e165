//! A tenant's program with its memory and its pool: it is given batches of packets, and answers what becomes of each.
//!
//! Why: a call costs some 20 ns, so that a batch of packets shares it.
//! From: FairNIC §4.1: batches run to completion, and §4.2.1: packets lie in a pool of their tenant's.
//! Not here: compiling (`runtime`), and the layout of a batch (`abi`).
//! Invariant: after [`Program::run`] each slot that was in the batch is in its answer once, or free again.

use std::fmt;

use plimsoll_units::{Nanos, Span};
use wasmtime::{
    Instance, Memory, Store, StoreLimits, StoreLimitsBuilder, Trap, TypedFunc, UpdateDeadline, WasmBacktrace,
};

use crate::abi::{
    BATCH, ENTRY, Entry, HEAD, INIT, RESTORE, ROOM, SAVE, STAGED, TICK, UnitCall, Verdict, Way,
};
use crate::pool::{Pool, Slot};
use crate::runtime::{Limits, Metering, Module, Runtime};
use crate::unit::{Operation, REQUEST, Request};
use crate::verify::PAGE;

/// A packet that is given to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its buffer, at whose beginning it lies.
    pub slot: Slot,
    /// Its length in bytes.
    pub len: u32,
    /// The port that it came from; of a packet that comes back from a coprocessor, [`crate::FROM_UNIT`] and the operation.
    pub port: u8,
    /// What a coprocessor has answered.
    pub result: u32,
}

impl Packet {
    /// The port that stands for the network.
    pub const NETWORK: u8 = 0;

    /// A packet at the beginning of a buffer.
    #[must_use]
    pub fn new(slot: Slot, len: u32, port: u8) -> Self {
        Self { slot, len, port, result: 0 }
    }
}

/// A packet that a program has decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Its buffer. With [`Verdict::Drop`] it is free again.
    pub slot: Slot,
    /// Where in its buffer it begins.
    pub at: u32,
    /// Its length in bytes.
    pub len: u32,
    /// What becomes of it.
    pub verdict: Verdict,
    /// Whether the program has added it to the batch.
    pub added: bool,
}

/// The outcome of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// The packets, in the order that the program left them in.
    pub packets: Vec<Decided>,
    /// Packets that are lost, as they lie outside their buffer or have an unknown verdict; their buffers are free again.
    pub malformed: u32,
}

/// Why the packets of a batch are lost. Their buffers are free again, and the program may be called again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The call took longer than its budget.
    #[error("it took longer than a call may take{}", In(.0))]
    OverBudget(Place),
    /// The program has done what WebAssembly forbids.
    #[error("{what}{}", In(place))]
    Trap {
        /// What it was, as `wasmtime` says it.
        what: String,
        /// Where.
        place: Place,
    },
    /// It returned fewer packets than there were, or more than there was room for.
    #[error("it returned {answered} packets, and may return {least} to {most}")]
    Count {
        /// What it returned.
        answered: u32,
        /// The packets of the batch.
        least: u32,
        /// The places of the batch.
        most: u32,
    },
}

/// A place in a program's code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The function, if the module has a name section.
    pub function: Option<String>,
    /// Bytes from the beginning of the module.
    pub offset: Option<usize>,
}

struct In<'a>(&'a Place);

impl fmt::Display for In<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(function) = &self.0.function {
            write!(f, ", in function `{function}`")?;
        }
        self.0.offset.map_or(Ok(()), |offset| write!(f, " (at byte {offset:#x} of the module)"))
    }
}

/// Why a program does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Start {
    /// Its memory or its tables cannot be made.
    #[error("it cannot be instantiated: {0}")]
    Instantiate(String),
    /// `init` has failed.
    #[error("`init`: {0}")]
    Init(#[from] Fault),
    /// `init` has returned this number.
    #[error("`init` returned {0}, and not 0")]
    Declined(i32),
}

/// Why the state of one program is not handed to another. Both run on as if nothing had been asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A function for it is missing.
    #[error("it does not export `{0}`")]
    Missing(&'static str),
    /// A function for it has failed.
    #[error("`{0}`: {1}")]
    Failed(&'static str, Fault),
    /// The state would lie outside its memory.
    #[error("`{0}` names memory that it does not have")]
    Outside(&'static str),
    /// It is longer than a state may be, as both programs' tenants wait while it is copied.
    #[error("it has {0} bytes, and a state may have {MOST_STATE}")]
    TooLong(usize),
    /// `state_room` has returned 0.
    #[error("`state_room` returned 0 for {0} bytes")]
    NoRoom(usize),
    /// `state_restore` has returned this number.
    #[error("`state_restore` returned {0}, and not 0")]
    Declined(i32),
}

/// Most bytes of a state that one program hands to another.
pub const MOST_STATE: usize = 1 << 20;

/// What bounds a program's memory and the time of its calls.
struct Bounds {
    memory: StoreLimits,
    /// How much CPU time the thread had used when an epoch began first in this call.
    since: Option<Nanos>,
}

/// A program that runs.
pub struct Program {
    store: Store<Bounds>,
    instance: Instance,
    memory: Memory,
    ingress: Option<TypedFunc<u32, u32>>,
    egress: Option<TypedFunc<u32, u32>>,
    tick: Option<TypedFunc<u64, ()>>,
    /// The address of the batch.
    batch: u32,
    pool: Pool,
    limits: Limits,
    runtime: Runtime,
    /// The buffers of the places of the batch.
    slots: Vec<Slot>,
    ran: Ran,
}

impl Program {
    /// A program with memory and a pool of its own; `init` has been called.
    ///
    /// # Errors
    /// See [`Start`].
    pub fn new(module: &Module) -> Result<Self, Start> {
        let failed = |error: wasmtime::Error| Start::Instantiate(format!("{error:#}"));
        let (limits, runtime) = (module.limits, &module.runtime);
        let bounds = StoreLimitsBuilder::new()
            .memory_size(usize::try_from(limits.memory).unwrap_or(usize::MAX))
            .table_elements(usize::try_from(limits.table_entries).unwrap_or(usize::MAX))
            .instances(1)
            .memories(1)
            .tables(1)
            .build();
        let mut store = Store::new(runtime.engine(), Bounds { memory: bounds, since: None });
        store.limiter(|bounds| &mut bounds.memory);
        if let Some(clock) = runtime.clock() {
            store.epoch_deadline_callback(move |mut store| Ok(store.data_mut().epoch(clock(), limits.time)));
        }
        grant(&mut store, runtime, &limits);
        let instance = Instance::new(&mut store, &module.compiled, &[]).map_err(failed)?;
        let memory = instance.get_memory(&mut store, "memory").expect("verified");
        let pages = memory.grow(&mut store, limits.pool_bytes() / PAGE).map_err(failed)?;
        let batch = u32::try_from(pages * PAGE).map_err(|error| Start::Instantiate(error.to_string()))?;
        let [ingress, egress] = Way::ALL.map(|way| instance.get_typed_func(&mut store, way.name()).ok());
        let tick = instance.get_typed_func(&mut store, TICK).ok();
        let init = instance.get_typed_func::<(), i32>(&mut store, INIT).ok();
        let mut program = Self {
            store,
            instance,
            memory,
            ingress,
            egress,
            tick,
            batch,
            pool: Pool::new(batch + STAGED as u32, limits.buffers, limits.buffer),
            limits,
            runtime: runtime.clone(),
            slots: Vec::with_capacity(BATCH),
            ran: Ran { packets: Vec::with_capacity(BATCH), ..Ran::default() },
        };
        let answered = init.map_or(Ok(0), |init| {
            program.grant();
            init.call(&mut program.store, ()).map_err(|error| fault(&error))
        })?;
        if answered == 0 { Ok(program) } else { Err(Start::Declined(answered)) }
    }

    /// Takes a free buffer of the pool.
    pub fn take(&mut self) -> Option<Slot> {
        self.pool.take()
    }

    /// Frees a buffer that was taken, or answered with another verdict than [`Verdict::Drop`].
    pub fn give(&mut self, slot: Slot) {
        self.pool.give(slot);
    }

    /// Free buffers of the pool.
    #[must_use]
    pub fn free(&self) -> usize {
        self.pool.free()
    }

    /// The bytes of a buffer.
    #[must_use]
    pub fn bytes(&self, slot: Slot) -> &[u8] {
        let at = self.pool.address(slot) as usize;
        &self.memory.data(&self.store)[at..][..self.pool.size() as usize]
    }

    /// The bytes of a buffer, to write.
    pub fn bytes_mut(&mut self, slot: Slot) -> &mut [u8] {
        let at = self.pool.address(slot) as usize;
        &mut self.memory.data_mut(&mut self.store)[at..][..self.pool.size() as usize]
    }

    /// The bytes of a packet that a program has decided on.
    #[must_use]
    pub fn packet(&self, decided: &Decided) -> &[u8] {
        &self.bytes(decided.slot)[decided.at as usize..][..decided.len as usize]
    }

    /// What a program wants done by a coprocessor, copied out of its memory. None where there is no such operation, or its argument does
    /// not lie in the program's memory.
    #[must_use]
    pub fn request(&self, decided: &Decided, call: UnitCall) -> Option<Request> {
        let operation = Operation::numbered(call.operation)?;
        let behind = self.memory.data(&self.store).get(call.argument as usize..).unwrap_or_default();
        let length = operation.argument_length(behind.get(..4.min(behind.len()))?)?;
        let (packet, argument) = (self.packet(decided).to_vec(), behind.get(..length)?.to_vec());
        let offset = usize::from(call.offset);
        let cost = (REQUEST + packet.len() + length) as u32;
        Some(Request { operation, packet, offset, most: self.pool.size() as usize, argument, cost })
    }

    /// Puts a packet that a coprocessor has answered into a free buffer, for the next batch. None without one, or where it is too short.
    pub fn give_back(&mut self, request: &Request, result: u32) -> Option<Packet> {
        let packet = self.pool.take_for(request, result)?;
        self.bytes_mut(packet.slot)[..request.packet.len()].copy_from_slice(&request.packet);
        Some(packet)
    }

    /// Whether the program looks at packets of this direction; others pass it.
    #[must_use]
    pub fn looks_at(&self, way: Way) -> bool {
        match way {
            Way::Ingress => self.ingress.is_some(),
            Way::Egress => self.egress.is_some(),
        }
    }

    /// The fuel that the last call took, with [`Metering::Fuel`], also if it ended with a fault.
    #[must_use]
    pub fn fuel(&self) -> Option<u64> {
        self.store.get_fuel().ok().map(|left| self.limits.fuel.saturating_sub(left))
    }

    /// Runs a batch of at most [`BATCH`] packets; those beyond are not looked at. The answer holds until the next call.
    ///
    /// # Errors
    /// See [`Fault`]: the packets are lost.
    pub fn run(&mut self, way: Way, packets: &[Packet], now: Nanos) -> Result<&Ran, Fault> {
        let room = packets.len().saturating_mul(self.limits.amplification as usize);
        self.run_within(way, packets, room, now)
    }

    /// Like [`Program::run`], with places for `room` packets, those that it adds included.
    pub(crate) fn run_within(
        &mut self,
        way: Way,
        packets: &[Packet],
        room: usize,
        now: Nanos,
    ) -> Result<&Ran, Fault> {
        let packets = &packets[..packets.len().min(BATCH)];
        self.ran.packets.clear();
        self.ran.malformed = 0;
        if !self.looks_at(way) {
            let pass = |packet: &Packet| Decided {
                slot: packet.slot,
                at: 0,
                len: packet.len,
                verdict: Verdict::Pass,
                added: false,
            };
            self.ran.packets.extend(packets.iter().map(pass));
            return Ok(&self.ran);
        }
        self.stage(packets, room.min(BATCH), now);
        self.grant();
        let function = match way {
            Way::Ingress => &self.ingress,
            Way::Egress => &self.egress,
        };
        let called = function.as_ref().map(|function| function.call(&mut self.store, self.batch));
        let answered = called.unwrap_or(Ok(0)).map_err(|error| fault(&error));
        let (least, most) = (packets.len() as u32, self.slots.len() as u32);
        let answered = answered.and_then(|answered| {
            let fits = (least..=most).contains(&answered);
            fits.then_some(answered as usize).ok_or(Fault::Count { answered, least, most })
        });
        match answered {
            Ok(answered) => self.collect(packets.len(), answered),
            Err(why) => {
                self.slots.drain(..).for_each(|slot| self.pool.give(slot));
                return Err(why);
            }
        }
        Ok(&self.ran)
    }

    /// What became of the last batch that ended without a fault.
    #[must_use]
    pub fn ran(&self) -> &Ran {
        &self.ran
    }

    /// Whether the program wants `tick` to be called.
    #[must_use]
    pub fn ticks(&self) -> bool {
        self.tick.is_some()
    }

    /// Calls `tick`, if the program has it.
    ///
    /// # Errors
    /// See [`Fault`]; no packet is lost by it.
    pub fn tick(&mut self, now: Nanos) -> Result<(), Fault> {
        let Some(tick) = self.tick.clone() else { return Ok(()) };
        self.grant();
        tick.call(&mut self.store, now.as_u64()).map_err(|error| fault(&error))
    }

    /// What it wants to hand to the program that takes over from it.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn save(&mut self) -> Result<Vec<u8>, StateError> {
        let named: u64 = self.state_call(SAVE, ())?;
        let (at, len) = ((named >> 32) as usize, (named & u64::from(u32::MAX)) as usize);
        if len > MOST_STATE {
            return Err(StateError::TooLong(len));
        }
        let state = self.memory.data(&self.store).get(at..at.saturating_add(len));
        state.map(<[u8]>::to_vec).ok_or(StateError::Outside(SAVE))
    }

    /// Takes over what the program before it has saved. To be called before the first packet.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn restore(&mut self, state: &[u8]) -> Result<(), StateError> {
        let length = u32::try_from(state.len()).map_err(|_| StateError::NoRoom(state.len()))?;
        let at: u32 = self.state_call(ROOM, length)?;
        if at == 0 {
            return Err(StateError::NoRoom(state.len()));
        }
        let at = at as usize;
        let room = self.memory.data_mut(&mut self.store).get_mut(at..at.saturating_add(state.len()));
        room.ok_or(StateError::Outside(ROOM))?.copy_from_slice(state);
        match self.state_call(RESTORE, length)? {
            0 => Ok(()),
            other => Err(StateError::Declined(other)),
        }
    }

    fn state_call<P, R>(&mut self, name: &'static str, given: P) -> Result<R, StateError>
    where
        P: wasmtime::WasmParams,
        R: wasmtime::WasmResults,
    {
        let function = self.instance.get_typed_func::<P, R>(&mut self.store, name);
        let function = function.map_err(|_| StateError::Missing(name))?;
        self.grant();
        function.call(&mut self.store, given).map_err(|error| StateError::Failed(name, fault(&error)))
    }

    /// What it may use.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    fn grant(&mut self) {
        grant(&mut self.store, &self.runtime, &self.limits);
    }

    /// Writes the batch into the program's memory, with free buffers for packets that it adds.
    fn stage(&mut self, packets: &[Packet], room: usize, now: Nanos) {
        self.slots.clear();
        self.slots.extend(packets.iter().map(|packet| packet.slot));
        while self.slots.len() < room {
            let Some(slot) = self.pool.take() else { break };
            self.slots.push(slot);
        }
        let begin = self.batch as usize;
        let memory = &mut self.memory.data_mut(&mut self.store)[begin..][..HEAD + BATCH * ENTRY];
        let (head, places) = memory.split_at_mut(HEAD);
        head[..8].copy_from_slice(&now.as_u64().to_le_bytes());
        head[8..12].copy_from_slice(&(packets.len() as u32).to_le_bytes());
        head[12..].copy_from_slice(&(self.slots.len() as u32).to_le_bytes());
        let (places, _) = places.as_chunks_mut();
        let (given, added) = places.split_at_mut(packets.len());
        let (size, arrived) = (self.pool.size(), now.as_u64());
        for (place, packet) in given.iter_mut().zip(packets) {
            let buffer = self.pool.address(packet.slot);
            let &Packet { len, port, result, .. } = packet;
            Entry { data: buffer, len, buffer, size, verdict: 0, port, result, arrived }.write(place);
        }
        for (place, slot) in added.iter_mut().zip(&self.slots[packets.len()..]) {
            let buffer = self.pool.address(*slot);
            // An added packet that gets no verdict is not sent.
            let verdict = 1;
            Entry { data: buffer, len: 0, buffer, size, verdict, port: 0, result: 0, arrived }.write(place);
        }
    }

    /// Reads the batch back, and frees the buffers of packets that go nowhere.
    fn collect(&mut self, given: usize, answered: usize) {
        let begin = self.batch as usize + HEAD;
        let memory = &self.memory.data(&self.store)[begin..][..BATCH * ENTRY];
        let (places, _) = memory.as_chunks();
        let Self { slots, pool, ran, .. } = self;
        slots.drain(answered..).for_each(|slot| pool.give(slot));
        for (number, (&slot, place)) in slots.iter().zip(places).enumerate() {
            let (data, len, verdict) = Entry::read(place);
            let decided = verdict.zip(pool.place(slot, data, len));
            let Some((verdict, at)) = decided else {
                ran.malformed += 1;
                pool.give(slot);
                continue;
            };
            if verdict == Verdict::Drop {
                pool.give(slot);
            }
            ran.packets.push(Decided { slot, at, len, verdict, added: number >= given });
        }
        slots.clear();
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("pool", &self.pool)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Bounds {
    /// An epoch begins during a call.
    fn epoch(&mut self, used: Nanos, most: Span) -> UpdateDeadline {
        let since = *self.since.get_or_insert(used);
        if used.since(since) < most { UpdateDeadline::Continue(1) } else { UpdateDeadline::Interrupt }
    }
}

fn grant(store: &mut Store<Bounds>, runtime: &Runtime, limits: &Limits) {
    match runtime.metering() {
        Metering::Epochs if runtime.clock().is_some() => {
            store.data_mut().since = None;
            store.set_epoch_deadline(1);
        }
        Metering::Epochs => store.set_epoch_deadline(limits.epochs),
        // Fuel is on: the engine was made for it.
        Metering::Fuel => store.set_fuel(limits.fuel).unwrap_or_default(),
    }
}

fn fault(error: &wasmtime::Error) -> Fault {
    let frames = error.downcast_ref::<WasmBacktrace>().map(WasmBacktrace::frames).unwrap_or_default();
    let place = Place {
        function: frames.first().and_then(|frame| frame.func_name()).map(str::to_owned),
        // A function that has no stack left has not begun: the place is its caller's.
        offset: frames.iter().find_map(|frame| frame.module_offset()),
    };
    match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt | Trap::OutOfFuel) => Fault::OverBudget(place),
        Some(trap) => Fault::Trap { what: trap.to_string(), place },
        None => Fault::Trap { what: format!("{error:#}"), place },
    }
}
