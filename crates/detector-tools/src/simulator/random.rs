//! Random numbers with the statistics of a detector.

use varve_env::random::Seeded;

pub struct FrameRandom(Seeded);

impl FrameRandom {
    pub fn new(seed: u64) -> FrameRandom {
        FrameRandom(Seeded::new(seed))
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit as usize) as u64
    }

    /// A random number above 0 and at most 1.
    fn unit(&mut self) -> f64 {
        ((self.0.number() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Poisson-distributed count with this mean: Knuth's multiplication method for small means, the normal distribution
    /// for large ones.
    pub fn poisson(&mut self, mean: f64) -> u64 {
        const MANY: f64 = 12.0;
        if mean > MANY {
            let normal = (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
            return (mean + mean.sqrt() * normal).round().max(0.0) as u64;
        }
        let limit = (-mean).exp();
        let mut product = self.unit();
        let mut count = 0;
        while product > limit {
            product *= self.unit();
            count += 1;
        }
        count
    }
}
