//! Dates in RFC 3339 format, converted to nanoseconds since 1970.

/// Returns `None` for an invalid date, or one before 1970 or after 2554.
pub fn parse(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let zone = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut clock = clock.split(':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let sound = (1970..=2554).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    if !sound || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let offset = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => 0,
        (sign, offset) => {
            let (hours, minutes) = offset.split_once(':')?;
            let minutes = hours.parse::<u8>().ok()? as i64 * 60 + minutes.parse::<u8>().ok()? as i64;
            if sign == "-" { -minutes } else { minutes }
        }
    };
    let seconds = (days(year, month, day) * 24 + hour) * 3600 + (minute - offset) * 60 + second;
    let nanoseconds = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanoseconds = nanoseconds.fold(0, |all, digit| all * 10 + u64::from(digit - b'0'));
    u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// Days since 1970-01-01 in the Gregorian calendar. Years are counted from March, so that the leap day comes last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let month = (month + 9) % 12;
    year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - 719_468
}

/// Formats in UTC with nanoseconds.
pub fn format(nanoseconds: u64) -> String {
    let (seconds, fraction) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    let (mut left, clock) = ((seconds / 86_400) as i64, seconds % 86_400);
    let mut year = 1970 + left / 366;
    while days(year + 1, 1, 1) <= left {
        year += 1;
    }
    let mut month = 1;
    while month < 12 && days(year, month + 1, 1) <= left {
        month += 1;
    }
    left -= days(year, month, 1);
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{fraction:09}Z", left + 1)
}
