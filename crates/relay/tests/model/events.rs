//! Small sets of events, and queues of them.

/// The maximum number of events in a configuration.
pub const EVENTS: usize = 4;

/// The index of an event in the configuration. Events of one key are numbered in the order in which their writers take
/// turns, so the order of indices is the order of commits.
pub type Event = usize;

/// A set of events, or of topics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Set(u8);

impl Set {
    /// The set of these members.
    pub const fn of(members: &[usize]) -> Set {
        let (mut set, mut at) = (0, 0);
        while at < members.len() {
            set |= 1 << members[at];
            at += 1;
        }
        Set(set)
    }

    pub fn contains(self, member: usize) -> bool {
        self.0 & (1 << member) != 0
    }

    pub fn insert(&mut self, member: usize) {
        self.0 |= 1 << member;
    }

    pub fn remove(&mut self, member: usize) {
        self.0 &= !(1 << member);
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn and(self, other: Set) -> Set {
        Set(self.0 & other.0)
    }

    pub fn or(self, other: Set) -> Set {
        Set(self.0 | other.0)
    }

    pub fn without(self, other: Set) -> Set {
        Set(self.0 & !other.0)
    }

    /// The members above this one.
    pub fn above(self, lowest: usize) -> Set {
        Set(self.0 & (!1 << lowest))
    }

    /// The set without its lowest members, if it has more than `most`.
    pub fn highest(mut self, most: usize) -> Set {
        let excess = self.iter().count().saturating_sub(most);
        self.iter().take(excess).for_each(|member| self.remove(member));
        self
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |member| self.contains(*member))
    }
}

/// Events in the order in which a producer sends them to one partition. Each event takes four bits. The next event to
/// arrive is in the lowest bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Queue(u16);

impl Queue {
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn len(self) -> usize {
        (0..4).filter(|at| self.at(*at).is_some()).count()
    }

    pub fn front(self) -> Option<Event> {
        self.at(0)
    }

    /// The event at this position. 0 is the front.
    pub fn at(self, place: usize) -> Option<Event> {
        match (self.0 >> (4 * place)) & 0xf {
            0 => None,
            nibble => Some(usize::from(nibble) - 1),
        }
    }

    pub fn push(&mut self, event: Event) {
        let end = self.len();
        assert!(end < 4, "a queue holds four events");
        self.0 |= (event as u16 + 1) << (4 * end);
    }

    pub fn pop(&mut self) -> Option<Event> {
        let front = self.front();
        self.0 >>= 4;
        front
    }

    pub fn iter(self) -> impl Iterator<Item = Event> {
        (0..4).map_while(move |place| self.at(place))
    }

    /// The queue without the events of this set.
    pub fn without(self, gone: Set) -> Queue {
        let mut rest = Queue::default();
        self.iter().filter(|event| !gone.contains(*event)).for_each(|event| rest.push(event));
        rest
    }
}
