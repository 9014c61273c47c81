//! The first messages of both sides.

use super::bad_message::{BadMessage, bad};
use super::message::BodyChecksum;
use super::read::{MessageReader, put_text};
use super::version::{NEWEST_VERSION, VERSION};
use std::time::Duration;

/// Long enough for a proposal, a sample and a scan, and short enough for file and metric names.
const NAME_BYTES_MAX: usize = 64;
const FOR_EVER: u32 = u32::MAX;

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRole {
    /// Frames of one source, and scalars.
    Frames,
    /// Scalars only.
    Scalars,
    /// A process that writes its share directly to the run's file.
    Writer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHello {
    /// The oldest version that the client supports.
    pub version: u16,
    /// The newest version that the client supports; 0, as clients with a single version send it: the same as `version`.
    pub newest: u8,
    pub role: StreamRole,
    pub checksum: BodyChecksum,
    /// Sum of [`super::level_bit`].
    pub levels: u8,
    pub source: u16,
    /// Number among the client's connections for this source.
    pub connection: u16,
    pub connections: u16,
    /// How long a frame may wait for queue space; `None`: for ever.
    pub patience: Option<Duration>,
    pub client: [u8; 16],
    pub run: String,
    pub token: String,
    /// JSON as in `POST /runs`; empty if the run is started by other means.
    pub start: String,
}

/// # Errors
/// If `name` cannot name a run. The error says which names are allowed.
pub fn check_run_name(name: &str) -> Result<(), BadMessage> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('.') || !name.chars().all(fits) {
        return bad(format!(
            "`{}` is no name of a run; use 1 to {NAME_BYTES_MAX} letters, digits, `.`, `_`, `-`, the first no `.`",
            name.chars().take(NAME_BYTES_MAX).collect::<String>().escape_default()
        ));
    }
    Ok(())
}

impl StreamHello {
    /// The version for the conversation with this client: the newest that both sides support.
    pub fn agreed(&self) -> u16 {
        self.version.max(u16::from(self.newest)).min(NEWEST_VERSION)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut head = self.version.to_le_bytes().to_vec();
        head.push(match self.role {
            StreamRole::Frames => 0,
            StreamRole::Scalars => 1,
            StreamRole::Writer => 2,
        });
        head.push(match self.checksum {
            BodyChecksum::None => 0,
            BodyChecksum::Crc32 => 1,
            BodyChecksum::Xxh3 => 2,
        });
        head.extend([self.levels, self.newest]);
        head.extend([self.source, self.connection, self.connections].into_iter().flat_map(u16::to_le_bytes));
        let patience = self
            .patience
            .map_or(FOR_EVER, |wait| u32::try_from(wait.as_millis()).unwrap_or(FOR_EVER).min(FOR_EVER - 1));
        head.extend(patience.to_le_bytes());
        head.extend(self.client);
        put_text(&self.run, &mut head);
        put_text(&self.token, &mut head);
        head.extend((self.start.len() as u32).to_le_bytes());
        head.extend(self.start.as_bytes());
        head
    }

    pub(super) fn decode(reader: &mut MessageReader<'_>) -> Result<StreamHello, BadMessage> {
        let version = reader.u16()?;
        if !(VERSION..=NEWEST_VERSION).contains(&version) {
            // The format of the rest is unknown. The service replies with ERROR `version`, and the client checks the
            // version first.
            return bad(format!(
                "the client speaks version {version} of the stream, this is {VERSION} to {NEWEST_VERSION}"
            ));
        }
        let role = match reader.u8()? {
            0 => StreamRole::Frames,
            1 => StreamRole::Scalars,
            2 => StreamRole::Writer,
            role => return bad(format!("HELLO has role {role}; there are 0 to 2")),
        };
        let checksum = match reader.u8()? {
            0 => BodyChecksum::None,
            1 => BodyChecksum::Crc32,
            2 => BodyChecksum::Xxh3,
            checksum => return bad(format!("HELLO has checksum {checksum}; there are 0 to 2")),
        };
        let (levels, newest) = (reader.u8()?, reader.u8()?);
        let (source, connection, connections) = (reader.u16()?, reader.u16()?, reader.u16()?);
        if levels > 7 || connection >= connections {
            return bad(format!("HELLO has levels {levels} and connection {connection} of {connections}"));
        }
        let patience = reader.u32()?;
        let client = reader.client()?;
        let name_bytes = reader.u16()?.into();
        let run = reader.text(name_bytes, "the run's name")?;
        check_run_name(&run)?;
        let token_bytes = reader.u16()?.into();
        let token = reader.text(token_bytes, "the token")?;
        let start_bytes = reader.u32()? as usize;
        let start = reader.text(start_bytes, "the start")?;
        let patience = (patience != FOR_EVER).then(|| Duration::from_millis(patience.into()));
        Ok(StreamHello {
            version,
            newest,
            role,
            checksum,
            levels,
            source,
            connection,
            connections,
            patience,
            client,
            run,
            token,
            start,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamWelcome {
    /// The version used from here on; see [`StreamHello::agreed`].
    pub version: u16,
    /// The service closes a connection after this long without a message.
    pub idle: Duration,
    pub body_bytes_max: u64,
    /// One past the highest frame that the service has.
    pub frames: u64,
}

impl StreamWelcome {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut head = self.version.to_le_bytes().to_vec();
        head.extend([0, 0]);
        head.extend(u32::try_from(self.idle.as_millis()).unwrap_or(u32::MAX).to_le_bytes());
        head.extend(self.body_bytes_max.to_le_bytes());
        head.extend(self.frames.to_le_bytes());
        head
    }

    pub(super) fn decode(reader: &mut MessageReader<'_>) -> Result<StreamWelcome, BadMessage> {
        let version = reader.u16()?;
        reader.u16()?;
        let idle = Duration::from_millis(reader.u32()?.into());
        Ok(StreamWelcome { version, idle, body_bytes_max: reader.u64()?, frames: reader.u64()? })
    }
}
