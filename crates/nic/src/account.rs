//! Packet accounting: how many descriptors each tenant holds.
//!
//! Why: a tenant that floods must fill its own share of the engine and no other tenant's.
//! From: PicNIC §5.4.2-3 (packet accounting), with caps per flow (`host`), tenant and host; Loom §4.2.3 (a cap of each class's
//! outstanding packets).
//! Not here: what the caller does with what is refused: hold it in the guest, or drop and count it.
//! Invariant: the host's count is the sum of the tenants' and of what belongs to no tenant. What a class with a cap holds, its
//! tenant holds as well.

use plimsoll_policy::{NodeId, TenantId};

use crate::ids::{OwnerId, Table};
use crate::refusal::Refusal;

/// Descriptors held: by tenant, by class with a cap of its own, and in all.
///
/// A flow queue is charged to an *owner*: a tenant, or after the tenants one of the classes with a cap.
#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    host: Account,
    /// Eight to a cache line: every packet changes one twice.
    tenants: Table<TenantId, Account>,
    /// By node, lowest first.
    classes: Vec<Capped>,
    refused: Table<TenantId, [u64; Refusal::COUNT]>,
    /// Refusals on flow queues that no tenant owns.
    untenanted: [u64; Refusal::COUNT],
}

#[derive(Clone, Copy, Debug)]
struct Account {
    held: u32,
    cap: u32,
}

/// A class with a cap of its own, and its tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capped {
    node: NodeId,
    own: Account,
    tenant: TenantId,
}

impl Capped {
    pub(crate) fn new(node: NodeId, cap: u32, tenant: TenantId) -> Self {
        Self { node, own: Account { held: 0, cap }, tenant }
    }
}

/// Stands for "no tenant".
pub(crate) const NO_TENANT: TenantId = TenantId(u32::MAX);

impl Accounts {
    /// `classes` come in the order of their nodes.
    pub(crate) fn new(host_cap: u32, tenant_caps: impl Iterator<Item = u32>, classes: Vec<Capped>) -> Self {
        let account = |cap| Account { held: 0, cap };
        let tenants: Table<TenantId, Account> = tenant_caps.map(account).collect();
        Self {
            host: account(host_cap),
            refused: vec![[0; Refusal::COUNT]; tenants.len()].into(),
            tenants,
            classes,
            untenanted: [0; Refusal::COUNT],
        }
    }

    /// Descriptors that the tenant may still bring.
    pub(crate) fn room(&self, tenant: TenantId) -> u32 {
        let host = self.host.cap.saturating_sub(self.host.held);
        self.tenants.get(tenant).map_or(host, |own| own.cap.saturating_sub(own.held).min(host))
    }

    /// The owner that a class with a cap is.
    pub(crate) fn owner_of(&self, node: NodeId) -> Option<OwnerId> {
        let class = self.classes.binary_search_by_key(&node, |class| class.node).ok()?;
        u32::try_from(self.tenants.len() + class).ok().map(OwnerId)
    }

    /// Which of the classes with a cap an owner is; `None` for a tenant, or for no tenant.
    #[inline]
    fn class_of(&self, owner: OwnerId) -> Option<usize> {
        let class = (owner.0 as usize).checked_sub(self.tenants.len())?;
        (class < self.classes.len()).then_some(class)
    }

    #[inline]
    pub(crate) fn take(&mut self, owner: OwnerId) -> Result<(), Refusal> {
        let Some(own) = self.tenants.get_mut(owner.tenant()) else { return self.take_of_others(owner) };
        if own.held >= own.cap {
            return Err(Refusal::TenantFull);
        }
        if self.host.held >= self.host.cap {
            return Err(Refusal::HostFull);
        }
        own.held += 1;
        self.host.held += 1;
        Ok(())
    }

    /// Slow path of [`Accounts::take`]: the owner is a class with a cap, or no tenant.
    #[inline(never)]
    fn take_of_others(&mut self, owner: OwnerId) -> Result<(), Refusal> {
        match self.class_of(owner) {
            None => self.take_of_tenant(owner.tenant()),
            Some(class) => self.take_in_class(class),
        }
    }

    fn take_in_class(&mut self, class: usize) -> Result<(), Refusal> {
        let Capped { own, tenant, .. } = self.classes[class];
        if own.held >= own.cap {
            return Err(Refusal::ClassFull);
        }
        self.take_of_tenant(tenant)?;
        self.classes[class].own.held += 1;
        Ok(())
    }

    #[inline]
    fn take_of_tenant(&mut self, tenant: TenantId) -> Result<(), Refusal> {
        if let Some(own) = self.tenants.get_mut(tenant) {
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
    pub(crate) fn give_back(&mut self, owner: OwnerId) {
        self.host.held = self.host.held.saturating_sub(1);
        match self.tenants.get_mut(owner.tenant()) {
            Some(own) => own.held = own.held.saturating_sub(1),
            None => self.give_back_to_class(owner),
        }
    }

    #[inline(never)]
    fn give_back_to_class(&mut self, owner: OwnerId) {
        let Some(class) = self.class_of(owner) else { return };
        let Capped { own, tenant, .. } = &mut self.classes[class];
        own.held = own.held.saturating_sub(1);
        if let Some(tenant) = self.tenants.get_mut(*tenant) {
            tenant.held = tenant.held.saturating_sub(1);
        }
    }

    /// Charges an owner for what it holds already when a policy is installed, even beyond its cap.
    pub(crate) fn charge(&mut self, owner: OwnerId, held: u32) {
        let tenant = match self.class_of(owner).map(|class| &mut self.classes[class]) {
            None => owner.tenant(),
            Some(class) => {
                class.own.held += held;
                class.tenant
            }
        };
        self.host.held += held;
        if let Some(own) = self.tenants.get_mut(tenant) {
            own.held += held;
        }
    }

    #[inline]
    pub(crate) fn refuse(&mut self, tenant: TenantId, why: Refusal) {
        match self.refused.get_mut(tenant) {
            Some(own) => own[why as usize] += 1,
            None => self.untenanted[why as usize] += 1,
        }
    }

    pub(crate) fn held(&self, tenant: TenantId) -> u32 {
        self.tenants.get(tenant).map_or(0, |own| own.held)
    }

    pub(crate) fn refused(&self, tenant: TenantId) -> [u64; Refusal::COUNT] {
        self.refused.get(tenant).copied().unwrap_or(self.untenanted)
    }

    pub(crate) fn host_held(&self) -> u32 {
        self.host.held
    }
}
