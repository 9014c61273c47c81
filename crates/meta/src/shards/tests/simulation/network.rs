//! A network that delays, loses, doubles and reorders messages, and is cut between owners.
//!
//! The seed and the number of a message on its link decide on its delays and losses, so that they do not depend on the
//! order in which threads finish file work.

use super::draw::Draw;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// The longest delay of a message. An owner's successor opens no shard sooner than this after the end of the lease.
pub const DELAY_MAX: Duration = Duration::from_millis(400);

/// After this time a sender finds that a connection is broken.
pub const BROKEN_AFTER: Duration = Duration::from_secs(1);

/// Limit on strikes in a round.
const STRIKES_MAX: usize = 2;

/// The number of an owner, or of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    Owner(usize),
    Client(u64),
}

/// The end of an owner at the moment at which its call, or its reply, is on its way.
#[derive(Clone, Debug)]
pub struct Strike {
    pub hits_sender: bool,
    pub draw: Draw,
}

/// The course of one message and its reply.
#[derive(Clone, Debug, Default)]
pub struct Passage {
    pub delay: Duration,
    /// The sender finds the connection broken.
    pub lost: bool,
    /// If it is lost: it arrives nevertheless, this long after its sender has given it up.
    pub late: Option<Duration>,
    /// The message arrives once more, this long after the first time.
    pub again_after: Option<Duration>,
    pub reply_delay: Duration,
    pub reply_lost: bool,
    pub strike: Option<Strike>,
}

pub struct Network {
    draw: Draw,
    /// Percentages.
    losses: usize,
    doubles: usize,
    strikes: usize,
    /// Strikes left in this round.
    strikes_left: Cell<usize>,
    sent: RefCell<HashMap<(Place, Place), u64>>,
    cut: RefCell<BTreeSet<(Place, Place)>>,
    healed: Cell<bool>,
}

impl Network {
    pub fn new(mut draw: Draw) -> Network {
        let (losses, doubles, strikes) = (draw.one_of(&[0, 5, 15, 30]), draw.below(30), draw.one_of(&[0, 2, 5, 10]));
        let (sent, cut, healed, strikes_left) = Default::default();
        Network { draw, losses, doubles, strikes, strikes_left, sent, cut, healed }
    }

    /// From now on messages are neither lost nor doubled, and no link is cut, until [`Network::disturb`].
    pub fn heal(&self) {
        self.healed.set(true);
        self.cut.borrow_mut().clear();
    }

    pub fn disturb(&self) {
        self.healed.set(false);
        self.strikes_left.set(STRIKES_MAX);
    }

    /// Takes one of the strikes left in this round.
    pub fn may_strike(&self) -> bool {
        let left = self.strikes_left.get();
        self.strikes_left.set(left.saturating_sub(1));
        left > 0 && !self.healed.get()
    }

    pub fn cut(&self, one: Place, other: Place) {
        self.cut.borrow_mut().insert((one.min(other), one.max(other)));
    }

    pub fn join(&self, one: Place, other: Place) {
        self.cut.borrow_mut().remove(&(one.min(other), one.max(other)));
    }

    pub fn is_cut(&self, one: Place, other: Place) -> bool {
        self.cut.borrow().contains(&(one.min(other), one.max(other)))
    }

    /// Decides on the next message from one place to another.
    pub fn passage(&self, from: Place, to: Place) -> Passage {
        let number = {
            let mut sent = self.sent.borrow_mut();
            let number = sent.entry((from, to)).or_default();
            *number += 1;
            *number
        };
        let link = |place: Place| match place {
            Place::Owner(number) => number as u64,
            Place::Client(number) => 1_000 + number,
        };
        let mut draw = self.draw.branch(link(from) << 48 | link(to) << 32 | number);
        let (delay, reply_delay) = (delay(&mut draw), delay(&mut draw));
        if self.healed.get() {
            return Passage { delay, reply_delay, ..Passage::default() };
        }
        let between_owners = matches!((from, to), (Place::Owner(_), Place::Owner(_)));
        Passage {
            delay,
            reply_delay,
            lost: draw.percent(self.losses),
            late: draw.percent(50).then(|| draw.milliseconds(2_000)),
            reply_lost: draw.percent(self.losses),
            again_after: (between_owners && draw.percent(self.doubles)).then(|| draw.milliseconds(3_000)),
            strike: (between_owners && draw.percent(self.strikes))
                .then(|| Strike { hits_sender: draw.percent(40), draw: draw.fork() }),
        }
    }
}

/// Mostly short, so that messages overtake each other.
fn delay(draw: &mut Draw) -> Duration {
    match draw.below(10) {
        0..=4 => Duration::ZERO,
        5 | 6 => draw.milliseconds(10),
        7 | 8 => draw.milliseconds(100),
        _ => draw.milliseconds(DELAY_MAX.as_millis() as usize),
    }
}
