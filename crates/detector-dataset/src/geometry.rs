//! Row-major arrays: coordinates of an element, and the index of coordinates.

/// Coordinates of element `number` in a row-major array with these sides.
pub fn unravel(mut number: u64, sides: &[u64]) -> Vec<u64> {
    let mut coordinates = vec![0; sides.len()];
    for (coordinate, side) in coordinates.iter_mut().zip(sides).rev() {
        *coordinate = number % side;
        number /= side;
    }
    coordinates
}

/// Index of `coordinates` in a row-major array with these sides. The first side has no effect.
pub fn ravel(coordinates: &[u64], sides: &[u64]) -> u64 {
    coordinates.iter().zip(sides).fold(0, |number, (coordinate, side)| number * side + coordinate)
}
