//! Starts tenants' programs, from modules that have been read.
//!
//! Why: a module that a daemon would refuse is refused before anything runs, with its function and its byte.
//! From: the daemon's `programs`; `docs/programs.md`, "In virtual time".
//! Not here: programs at work (`hosted`), files (`plimsoll-scenario` reads them).
//! Invariant: a module that a daemon would load is loaded here, too, and has as much memory.

use plimsoll_offload::{BATCH, Limits, Metering, Program, Runtime, Unit};
use plimsoll_policy::{Checked, DEFAULT_SLOTS, TenantConfig, TenantProgram};
use plimsoll_scenario::{Host, Ingress, ModuleFile, Problem, ReceiveRing};
use plimsoll_units::Span;

use super::Builder;
use crate::error::SimError;
use crate::hosted::Hosted;
use crate::receive::Receive;
use crate::units::Units;

/// Buffers that packets for the tenant leave free, as live.
const RESERVED: u32 = 2 * BATCH as u32;
/// An Ethernet header with two tags.
const ETHERNET: u32 = 22;
/// Buffers are a multiple of this long.
const BUFFER: u32 = 2_048;

/// The way in of a host that states none: only its tenants' programs take time.
const PROGRAMS_ONLY: ReceiveRing = ReceiveRing {
    ring: 1_024,
    drain: Span::ZERO,
    cost: Span::ZERO,
    slots: DEFAULT_SLOTS,
    ecn: None,
    drain_share: 640,
    round: Span::ZERO,
    vary: false,
};

/// A host's way in: the one that it states, or one for its tenants' programs.
pub(super) fn ring_of(host: &Host, checked: Option<&Checked>) -> Option<ReceiveRing> {
    let has_programs = || checked.is_some_and(|checked| with_programs(checked).next().is_some());
    host.receive.or_else(|| has_programs().then_some(PROGRAMS_ONLY))
}

fn with_programs(checked: &Checked) -> impl Iterator<Item = (&TenantConfig, &TenantProgram)> {
    checked.config.tenants.iter().filter_map(|tenant| Some((tenant, tenant.program.as_ref()?)))
}

impl Builder<'_> {
    /// Starts the programs of a host's tenants.
    pub(super) fn programs(
        &self,
        node: u32,
        host: &Host,
        checked: &Checked,
        receive: &mut Receive,
    ) -> Result<(), SimError> {
        // By coprocessor and tenant.
        let mut weights = Unit::ALL.map(|_| vec![0; self.scenario.tenants.len()]);
        for (tenant, stated) in with_programs(checked) {
            self.fits(host, &tenant.name, stated)?;
            let modules = &self.scenario.modules;
            let file =
                modules.get(&stated.module).ok_or_else(|| SimError::NoModule(stated.module.clone()))?;
            let started = start(&file.bytes, &self.limits(host, checked, &tenant.name, stated));
            let program = started.map_err(|why| self.refused(file, &tenant.name, stated, &why))?;
            let index = self.scenario.tenants.iter().position(|known| known.name == tenant.name);
            let Some(index) = index.and_then(|index| u32::try_from(index).ok()) else { continue };
            let longest = self.scenario.inner_mtu() + 14;
            let hosted = Hosted::new(program, (node, index), host.programs, stated.fails, longest);
            receive.host(index, Box::new(hosted));
            for (of_unit, (_, weight)) in weights.iter_mut().zip(stated.units.named()) {
                of_unit[index as usize] = weight;
            }
        }
        if weights.iter().flatten().any(|&weight| weight > 0) {
            receive.set_units(Box::new(Units::new(host.programs.units, &weights, self.system.limiter)));
        }
        Ok(())
    }

    /// What a program may use: as live, and so many instructions a call as take the time that a call may take.
    fn limits(&self, host: &Host, checked: &Checked, tenant: &str, stated: &TenantProgram) -> Limits {
        let slo = checked.program.tenants.iter().find(|compiled| compiled.name == tenant);
        let longest = u32::from(checked.config.uplink.mtu) + ETHERNET;
        let limits = Limits::default();
        Limits {
            memory: stated.memory.as_u64(),
            buffers: slo.map_or(DEFAULT_SLOTS, |compiled| compiled.slo.slots) + RESERVED,
            buffer: longest.next_multiple_of(BUFFER),
            amplification: stated.amplification,
            fuel: host.programs.instructions_in(limits.time),
            ..limits
        }
    }

    /// Refuses what virtual time does not have.
    fn fits(&self, host: &Host, tenant: &str, stated: &TenantProgram) -> Result<(), SimError> {
        let (what, help) = if stated.core.is_some() {
            let help = "leave `cpu` out, and give the tenant cores of the host by `partition`";
            ("a program with a core of its own, by its number, and in virtual time cores have none", help)
        } else if self.system.ingress == Ingress::Shared {
            ("a program, and the system has `ingress: shared`", "programs share the CPU: leave `ingress` out")
        } else {
            return Ok(());
        };
        let message = format!("tenant `{tenant}` of host `{}` has {what}", host.name);
        Err(self.wrong(Problem::new(host.place, message).label("not in virtual time").help(help)))
    }

    fn refused(&self, file: &ModuleFile, tenant: &str, stated: &TenantProgram, why: &str) -> SimError {
        let message = format!("tenant `{tenant}`: program {}: {why}", stated.module.display());
        let help = "`plimsoll program check` says what is right";
        self.wrong(Problem::new(file.place, message).label("refused").help(help))
    }
}

fn start(module: &[u8], limits: &Limits) -> Result<Program, String> {
    let runtime = Runtime::new(Metering::Fuel).map_err(|error| error.to_string())?;
    let module = runtime.load(module, limits).map_err(|error| error.to_string())?;
    Program::new(&module).map_err(|error| error.to_string())
}
