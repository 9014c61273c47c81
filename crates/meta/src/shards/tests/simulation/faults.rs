//! The faults of a round.

use super::Simulation;
use super::draw::Draw;
use super::network::DELAY_MAX;
use super::owners::Owner;
use std::rc::Rc;
use std::time::Duration;

/// A successor opens shards this long after the end of a lease: all replies have arrived that left before it.
const GRACE: Duration = DELAY_MAX.saturating_add(Duration::from_millis(100));

/// Zombies kept over the rounds.
const ZOMBIES_MAX: usize = 2;

impl Simulation {
    /// Lets one fault happen, and returns when it is over. An owner that has lost its lease lives on.
    pub async fn fault(self: Rc<Self>, mut draw: Draw) {
        tokio::time::sleep(draw.milliseconds(600)).await;
        let members = self.members();
        let owner = draw.one_of(&members);
        match draw.below(8) {
            0..=2 => self.kill(&owner, &mut draw).await,
            3..=5 => self.end_lease(&owner, &mut draw).await,
            6 => {
                self.trace(format!("owner {} is stopped", owner.number));
                owner.stopped.set(true);
                tokio::time::sleep(draw.milliseconds(5_000)).await;
                owner.stopped.set(false);
                self.trace(format!("owner {} goes on", owner.number));
            }
            _ => {
                let (one, other) = (owner.place(), draw.one_of(&members).place());
                self.trace(format!("{one:?} and {other:?} are cut off from each other"));
                self.network.cut(one, other);
                tokio::time::sleep(draw.milliseconds(10_000)).await;
                self.network.join(one, other);
            }
        }
    }

    /// Ends an owner, or its lease, at once.
    pub async fn strike(self: Rc<Self>, owner: Rc<Owner>, mut draw: Draw) {
        match draw.percent(60) {
            true => self.kill(&owner, &mut draw).await,
            false => self.end_lease(&owner, &mut draw).await,
        }
    }

    async fn kill(self: &Rc<Self>, owner: &Rc<Owner>, draw: &mut Draw) {
        if !owner.lives() || !owner.lease.get() {
            return;
        }
        self.trace(format!("owner {} is killed", owner.number));
        owner.lease.set(false);
        owner.kill();
        self.start_owner();
        tokio::time::sleep(draw.milliseconds(2_000)).await;
        self.give_all_of(owner, draw);
    }

    async fn end_lease(self: &Rc<Self>, owner: &Rc<Owner>, draw: &mut Draw) {
        if !owner.lives() || !owner.lease.get() {
            return;
        }
        let stops = draw.percent(60);
        self.trace(format!("the lease of owner {} ends; it is stopped: {stops}", owner.number));
        owner.lease.set(false);
        owner.stopped.set(stops);
        self.start_owner();
        tokio::time::sleep(GRACE).await;
        self.give_all_of(owner, draw);
        tokio::time::sleep(draw.milliseconds(6_000)).await;
        if stops && draw.percent(70) {
            self.trace(format!("owner {} goes on without a lease", owner.number));
            owner.stopped.set(false);
        }
    }

    /// Gives the shards of an owner that has ended to members.
    fn give_all_of(self: &Rc<Self>, owner: &Rc<Owner>, draw: &mut Draw) {
        let members = self.members();
        for id in self.settings.shards.all().filter(|id| self.term(*id).owner == owner.number) {
            self.give(id, &draw.one_of(&members));
        }
    }

    /// Ends some zombies after a round, and lets others go on.
    pub fn settle_zombies(self: &Rc<Self>, draw: &mut Draw) {
        let zombies = self.zombies();
        for (number, zombie) in zombies.iter().enumerate() {
            let many = zombies.len() - number > ZOMBIES_MAX;
            if many || draw.percent(30) {
                self.trace(format!("owner {}, without a lease, is killed", zombie.number));
                zombie.kill();
            } else if draw.percent(50) {
                zombie.stopped.set(false);
            }
        }
    }
}
