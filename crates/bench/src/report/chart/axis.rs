//! Scales and their ticks.

/// Round values from 0 to at least `max`, about `count` of them.
pub fn linear_ticks(max: f64, count: usize) -> Vec<f64> {
    let rough = (max / count as f64).max(f64::MIN_POSITIVE);
    let magnitude = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|step| step * magnitude >= rough * 0.999).unwrap_or(10.0);
    let step = step * magnitude;
    let last = (max / step).ceil().max(1.0) as usize;
    (0..=last).map(|i| i as f64 * step).collect()
}

/// A logarithmic scale of at least one decade around the values shown.
pub struct Logarithmic {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Logarithmic {
    /// Maps values from `low` to `high` (both above 0) to positions between `from` and `to`.
    pub fn new(low: f64, high: f64, from: f64, to: f64) -> Logarithmic {
        let low = (low * 0.8).max(1e-3).log10();
        let high = (high * 1.25).max(1e-3).log10();
        let short = (1.0 - (high - low)).max(0.0) / 2.0;
        Logarithmic { low: low - short, high: high + short, from, to }
    }

    pub fn at(&self, value: f64) -> f64 {
        let share = (value.max(1e-3).log10() - self.low) / (self.high - self.low);
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Powers of ten; with few decades also 2 and 5 times these.
    pub fn ticks(&self) -> Vec<f64> {
        let factors: &[f64] = if self.high - self.low < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let decades = self.low.floor() as i32..=self.high.ceil() as i32;
        let all = decades.flat_map(|decade| factors.iter().map(move |factor| factor * 10_f64.powi(decade)));
        all.filter(|tick| (self.low..=self.high).contains(&tick.log10())).collect()
    }
}
