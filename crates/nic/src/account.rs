//! Packet accounting: who holds how many descriptors.
//!
//! Why: a tenant that floods must fill its own share of the engine and nobody else's.
//! From: PicNIC §5.4.2-3 (packet accounting), with caps per flow (`host`), tenant and host.
//! Not here: what the caller does with what is refused: hold it in the guest, or drop and count it.
//! Invariant: the host's count is the sum of the tenants' and of what belongs to no tenant.

use crate::host::Refusal;

/// Descriptors held, by tenant and in all.
#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    host: Account,
    /// Eight to a cache line: every packet comes by here twice.
    tenants: Vec<Account>,
    refused: Vec<[u64; Refusal::COUNT]>,
    /// Refusals on flow queues that no tenant owns.
    pub(crate) nobody: [u64; Refusal::COUNT],
}

#[derive(Clone, Copy, Debug)]
struct Account {
    held: u32,
    cap: u32,
}

/// Stands for "no tenant".
pub(crate) const NOBODY: u32 = u32::MAX;

impl Accounts {
    pub(crate) fn new(host_cap: u32, tenant_caps: impl Iterator<Item = u32>) -> Self {
        let account = |cap| Account { held: 0, cap };
        let tenants: Vec<Account> = tenant_caps.map(account).collect();
        Self {
            host: account(host_cap),
            refused: vec![[0; Refusal::COUNT]; tenants.len()],
            tenants,
            nobody: [0; Refusal::COUNT],
        }
    }

    /// Descriptors that the tenant may still bring.
    pub(crate) fn room(&self, tenant: u32) -> u32 {
        let host = self.host.cap.saturating_sub(self.host.held);
        self.tenants.get(tenant as usize).map_or(host, |own| own.cap.saturating_sub(own.held).min(host))
    }

    #[inline]
    pub(crate) fn take(&mut self, tenant: u32) -> Result<(), Refusal> {
        if let Some(own) = self.tenants.get_mut(tenant as usize) {
            if own.held >= own.cap {
                return Err(Refusal::TenantFull);
            }
            if self.host.held >= self.host.cap {
                return Err(Refusal::HostFull);
            }
            own.held += 1;
        } else if self.host.held >= self.host.cap {
            return Err(Refusal::HostFull);
        }
        self.host.held += 1;
        Ok(())
    }

    #[inline]
    pub(crate) fn give_back(&mut self, tenant: u32) {
        self.host.held = self.host.held.saturating_sub(1);
        if let Some(own) = self.tenants.get_mut(tenant as usize) {
            own.held = own.held.saturating_sub(1);
        }
    }

    /// Counts what a new policy's owner holds already, whatever its cap.
    pub(crate) fn charge(&mut self, tenant: u32, held: u32) {
        self.host.held += held;
        if let Some(own) = self.tenants.get_mut(tenant as usize) {
            own.held += held;
        }
    }

    #[inline]
    pub(crate) fn refuse(&mut self, tenant: u32, why: Refusal) {
        match self.refused.get_mut(tenant as usize) {
            Some(own) => own[why as usize] += 1,
            None => self.nobody[why as usize] += 1,
        }
    }

    pub(crate) fn held(&self, tenant: u32) -> u32 {
        self.tenants.get(tenant as usize).map_or(0, |own| own.held)
    }

    pub(crate) fn refused(&self, tenant: u32) -> [u64; Refusal::COUNT] {
        self.refused.get(tenant as usize).copied().unwrap_or(self.nobody)
    }

    pub(crate) fn host_held(&self) -> u32 {
        self.host.held
    }
}
