//! Text form of filters, for the command line and dataset specs.

use super::{Compression, Filter, GZIP_LEVEL, ZSTD_LEVEL};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` is not a filter ({why}); use raw, gzip[:1-9], lz4, zstd[:1-22], bslz4 or bszstd[:1-22], where gzip, lz4 \
    and zstd may follow shuffle+"
)]
pub struct BadFilterName {
    pub name: String,
    why: String,
}

impl FromStr for Filter {
    type Err = BadFilterName;

    fn from_str(name: &str) -> Result<Filter, BadFilterName> {
        let bad = |why: &str| BadFilterName { name: name.to_owned(), why: why.to_owned() };
        let (shuffle, rest) = name.strip_prefix("shuffle+").map_or((false, name), |rest| (true, rest));
        let (word, level) = match rest.split_once(':') {
            None => (rest, None),
            Some((word, level)) => (word, Some(level.parse::<u32>().map_err(|_| bad("its level is not a number"))?)),
        };
        let within = |default: u32, max: u32| match level.unwrap_or(default) {
            level if (1..=max).contains(&level) => Ok(level),
            level => Err(bad(&format!("level {level} is not within 1 to {max}"))),
        };
        let zstd = || within(ZSTD_LEVEL as u32, 22).map(|level| level as i32);
        let compression = match word {
            "raw" => Compression::None,
            "gzip" => Compression::Gzip { level: within(GZIP_LEVEL, 9)? },
            "lz4" => Compression::Lz4,
            "zstd" => Compression::Zstd { level: zstd()? },
            "bslz4" => Compression::BitshuffleLz4,
            "bszstd" => Compression::BitshuffleZstd { level: zstd()? },
            _ => return Err(bad("no such compression")),
        };
        if level.is_some() && matches!(compression, Compression::None | Compression::Lz4 | Compression::BitshuffleLz4) {
            return Err(bad("it takes no level"));
        }
        let shuffles = matches!(compression, Compression::BitshuffleLz4 | Compression::BitshuffleZstd { .. });
        if shuffle && (shuffles || compression == Compression::None) {
            return Err(bad("shuffle works only with gzip, lz4 and zstd"));
        }
        Ok(Filter { shuffle, compression })
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shuffle {
            f.write_str("shuffle+")?;
        }
        match self.compression {
            Compression::None => f.write_str("raw"),
            Compression::Gzip { level } => write!(f, "gzip:{level}"),
            Compression::Lz4 => f.write_str("lz4"),
            Compression::Zstd { level } => write!(f, "zstd:{level}"),
            Compression::BitshuffleLz4 => f.write_str("bslz4"),
            Compression::BitshuffleZstd { level } => write!(f, "bszstd:{level}"),
        }
    }
}

impl Serialize for Filter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Filter, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
