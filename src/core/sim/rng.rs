//! A small seeded generator. Every actor draws from a stream of its own, so that a new draw in one place does not
//! shift what happens in the others.

/// splitmix64: one addition and three multiplications a draw, and every seed is a good seed.
#[derive(Debug, Clone, Copy)]
pub struct Rng(u64);

impl Rng {
    /// A stream for one purpose within one history.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = Self(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        rng.next();
        Self(rng.next())
    }

    /// 64 random bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; zero for a bound of zero.
    pub const fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// A number of the half-open range.
    pub const fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from))
    }

    /// True in `percent` of 100 draws.
    pub const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One element; none of an empty slice.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let at = self.below(from.len() as u64);
        from.get(usize::try_from(at).ok()?)
    }

    /// 128 random bits, for ids.
    pub const fn wide(&mut self) -> u128 {
        ((self.next() as u128) << 64) | self.next() as u128
    }
}
