//! Whether the work can be completed from every state if nothing else fails.

/// The steps that need no fault and no luck, by state.
#[derive(Default)]
pub struct Onward {
    /// From, to.
    steps: Vec<(u32, u32)>,
    at_rest: Vec<u32>,
}

impl Onward {
    /// Records a step from one state to another.
    pub fn leads(&mut self, from: usize, to: usize) {
        self.steps.push((from as u32, to as u32));
    }

    /// Records that no work is left in this state.
    pub fn at_rest(&mut self, state: usize) {
        self.at_rest.push(state as u32);
    }

    /// The first of these states from which no path leads to a state at rest. Follows all steps backwards from the
    /// states at rest.
    pub fn first_without_rest(mut self, states: usize) -> Option<usize> {
        self.steps.sort_unstable_by_key(|(_, to)| *to);
        let mut reaches_rest = vec![false; states];
        let mut walk = self.at_rest;
        walk.iter().for_each(|state| reaches_rest[*state as usize] = true);
        while let Some(state) = walk.pop() {
            let first = self.steps.partition_point(|(_, to)| *to < state);
            for (from, _) in self.steps[first..].iter().take_while(|(_, to)| *to == state) {
                if !std::mem::replace(&mut reaches_rest[*from as usize], true) {
                    walk.push(*from);
                }
            }
        }
        reaches_rest.iter().position(|reaches| !reaches)
    }
}
