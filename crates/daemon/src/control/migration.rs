//! Which engine thread serves which tenant, as load shifts.
//!
//! Why: a tenant that grows must not fill its thread while others idle.
//! From: `plimsoll_control::leases::Spread`, fed with the frames of each tenant.
//! Not here: how a tenant moves (`dataplane::migrate`).
//! Invariant: nothing moves while no thread has much to do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_control::leases::{Move, Spread};
use plimsoll_units::Span;
use tokio::time::{MissedTickBehavior, interval};

use super::Control;
use crate::dataplane::Migration;
use crate::open::close;
use crate::thread::{Command, Stopped};

/// How often threads are compared.
const PERIOD: Span = Span::millis(250);

/// How long a tenant's frames may take to leave its old thread, while it waits, and how often they are looked for.
const DRAINED: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(1);

/// Frames of the busiest thread in a period below which nothing moves: 4,000 a second take a fifth of a core where each needs a
/// wake-up, and a hundredth where they come together.
const FEW: u64 = 1_000;

/// Moves tenants between the engine's threads until it ends; with one thread there is nothing to do.
pub(crate) async fn keep_even(control: Arc<Control>) {
    if control.handle().threads() > 1 {
        // It ends with the engine.
        let _: Result<(), Stopped> = Balance::default().keep(&control).await;
    }
}

/// What is known of each tenant's load.
#[derive(Debug, Default)]
struct Balance {
    spread: Option<Spread>,
    /// The tenants and their threads, in the order of `spread`.
    seats: Vec<(String, usize)>,
    /// Frames of each so far.
    counted: HashMap<String, u64>,
}

impl Balance {
    async fn keep(mut self, control: &Control) -> Result<(), Stopped> {
        let mut periods = interval(Duration::from_nanos(PERIOD.as_u64()));
        periods.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            periods.tick().await;
            let loads = control.handle().ask(Command::Loads).await?;
            let seats = control.state().seats.all();
            if seats != self.seats {
                // A reload, or a tenant that has moved otherwise.
                self.spread = None;
                self.seats = seats;
            }
            let Some(Move { tenant, from, to }) = self.compare(control, loads) else { continue };
            let name = self.seats[tenant].0.clone();
            let moved = control.migrate(&name, to).await?;
            let Some(spread) = &mut self.spread else { continue };
            if moved {
                spread.handle_drained(tenant);
                self.seats[tenant].1 = to;
                eprintln!("plimsoll: tenant {name}: engine thread {to} serves it now, {from} is busier");
            } else {
                spread.handle_stayed(tenant);
            }
        }
    }

    /// The tenant that is to move, after another period with these loads.
    fn compare(&mut self, control: &Control, loads: Vec<(String, u64)>) -> Option<Move> {
        let threads = control.handle().threads();
        let seats = &self.seats;
        let spread = self
            .spread
            .get_or_insert_with(|| Spread::new(seats.iter().map(|&(_, thread)| thread), threads, PERIOD));
        let loads: HashMap<String, u64> = loads.into_iter().collect();
        let mut of_thread = vec![0; threads];
        for (tenant, (name, thread)) in seats.iter().enumerate() {
            let now = loads.get(name).copied().unwrap_or(0);
            // A port that was opened anew may count from zero.
            let frames = self.counted.get(name).map_or(0, |before| now.saturating_sub(*before));
            of_thread[*thread] += frames;
            spread.handle_work(tenant, frames);
        }
        self.counted = loads;
        let busiest = of_thread.into_iter().max().unwrap_or(0);
        if busiest < FEW { None } else { spread.handle_period(control.handle().clock().now()) }
    }
}

impl Control {
    /// Moves a tenant to another thread, once its old one has nothing left of it. Answers whether it has moved: not if that takes longer
    /// than a tenth of a second, or the tenant is served as only its own thread can.
    ///
    /// # Errors
    /// [`Stopped`] when the engine has ended.
    pub async fn migrate(&self, name: &str, to: usize) -> Result<bool, Stopped> {
        let _turn = self.turn.lock().await;
        self.migrate_now(name, to).await
    }

    /// The thread that serves a tenant.
    pub(super) fn thread(&self, name: &str) -> usize {
        self.state().seats.thread(name)
    }

    /// Moves a tenant, while nothing else changes the policy or its seats.
    pub(super) async fn migrate_now(&self, name: &str, to: usize) -> Result<bool, Stopped> {
        let from = self.thread(name);
        let begun = Instant::now();
        loop {
            let halt = |answer| Command::Halt(name.to_owned(), answer);
            match self.handle.ask_one(from, halt).await? {
                Some(true) => break,
                Some(false) if begun.elapsed() < DRAINED => tokio::time::sleep(LOOK).await,
                Some(false) | None => {
                    self.handle.send_to(from, Command::Resume(name.to_owned()))?;
                    return Ok(false);
                }
            }
        }
        let migration = Arc::new(Migration::new(name.to_owned(), to, self.handle.threads()));
        self.handle.ask(|answer| Command::Migrate(Arc::clone(&migration), answer)).await?;
        self.state().seats.set_thread(name, to);
        close(migration.left_over().into_iter().collect(), ());
        Ok(true)
    }
}
