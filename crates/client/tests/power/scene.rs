//! A volume, a server and a client in this process, and the state after a power failure.

use super::model::{BEGUN, CompletedActions, FileModel, FoundContent, INLINE_LIMIT, SYNCED};
use super::steps::{Path, Step};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;
use varve_client::{ClientConfig, FileSystem, Handle, Library, OpenFlags, OpenMode, RenameFlags, block_on};
use varve_env::power_loss::{Fate, History, Recording};
use varve_env::volume_dir::{FormatOver, VolumeDir};
use varve_meta::server::{Server, ServerConfig};
use varve_types::{Credentials, Errno, InodeId, Mode, Name, SetAttributes, ShardCount, VolumeId, VolumeSettings};

pub use varve_env::power_loss::DiskState;

const MODE: Mode = Mode(0o644);
const STOP: Duration = Duration::from_secs(20);

/// The volume that every sequence starts from.
pub struct Scene {
    prepared: DiskState,
    shards: u16,
}

/// The record of a run.
pub struct RunTrace {
    steps: Vec<Step>,
    pub history: History,
    model: FileModel,
}

/// A volume with its server and client.
struct Running {
    volume: VolumeDir,
    server: Server,
    library: Library,
}

impl Running {
    fn start(store: &FilePath, sockets: &FilePath) -> Running {
        let volume = VolumeDir::new(store);
        let config = ServerConfig {
            workers: 1,
            unix_directory: Some(sockets.to_owned()),
            // One session, as in a mount: the server accepts its sizes at once.
            embedded: true,
            memory_bytes: 128 * 1024 * 1024,
            ..ServerConfig::new(volume.clone())
        };
        let server = Server::start(config).unwrap();
        let config = ClientConfig { deadline: Duration::from_secs(30), ..ClientConfig::new(volume.clone()) };
        let library = Library::new(FileSystem::connect(config).unwrap(), Credentials::root());
        Running { volume, server, library }
    }

    fn fs(&self) -> &Arc<FileSystem> {
        self.library.file_system()
    }

    /// Runs `work` on the file while the client keeps the locator of its lookup.
    fn with<T>(&self, path: Path, work: impl FnOnce(&FileSystem, InodeId) -> T) -> T {
        let (directory, last) = path.text().rsplit_once('/').expect("a path");
        let directory = block_on(self.library.stat(directory.as_bytes())).unwrap().inode;
        let name = Name::new(last.as_bytes()).unwrap();
        let inode = block_on(self.fs().lookup(&Credentials::root(), directory, &name)).unwrap().inode;
        let done = work(self.fs(), inode);
        self.fs().forget(inode, 1);
        done
    }

    fn open(&self, path: Path, flags: OpenFlags) -> Handle {
        self.with(path, |fs, inode| block_on(fs.open(&Credentials::root(), inode, flags)).unwrap().handle)
    }

    fn close(&self, handle: Handle) {
        block_on(self.fs().flush(handle)).unwrap();
        block_on(self.fs().release(handle));
    }

    /// `clean`: like the end of a mount. Otherwise like the death of the process, as far as that is possible within one
    /// process.
    fn stop(self, clean: bool) {
        if clean {
            block_on(self.fs().shutdown()).unwrap();
        }
        drop(self.library);
        self.server.stop(STOP).unwrap();
        // Every server makes it anew, and it is as large as some thousand volumes of these tests.
        std::fs::remove_file(self.volume.reserve()).unwrap_or_default();
    }
}

impl Scene {
    pub fn new(shards: u16) -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("store");
        let settings = VolumeSettings {
            id: VolumeId([9; 16]),
            name: "power".into(),
            shards: ShardCount::new(shards).unwrap(),
            // One worker owns all shards.
            split_threshold: 4,
            inline_limit: INLINE_LIMIT as u32,
            // Only the steps sync.
            sync_interval: Duration::from_secs(300),
            owner_uid: rustix::process::geteuid().as_raw(),
        };
        varve_admin::format::format(&VolumeDir::new(&store), &settings, FormatOver::Nothing).unwrap();
        let recording = Recording::begin(&store).unwrap();
        let running = Running::start(&store, &directory.path().join("sockets"));
        for path in ["/one", "/two"] {
            block_on(running.library.make_directory(path.as_bytes(), Mode::new(0o755))).unwrap();
        }
        running.stop(true);
        drop(recording);
        let prepared = DiskState::read_from(&store).unwrap().without_empty(FilePath::new("data"));
        Scene { prepared, shards }
    }

    /// Runs the steps on a copy of the volume.
    pub fn run(&self, steps: &[Step]) -> RunTrace {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("store");
        std::fs::create_dir(&store).unwrap();
        self.prepared.write_to(&store).unwrap();
        let recording = Recording::begin(&store).unwrap();
        let running = Running::start(&store, &directory.path().join("sockets"));
        let mut actor = Actor {
            running: &running,
            recording: &recording,
            model: FileModel::new(self.shards == 1),
            held: HashMap::new(),
            writes: 0,
        };
        steps.iter().for_each(|step| actor.step(*step));
        let Actor { model, held, .. } = actor;
        let history = recording.history();
        held.into_values().for_each(|handle| running.close(handle));
        running.stop(true);
        let strays = recording.check().unwrap();
        assert!(strays.is_empty(), "changed past the seam: {strays:?}");
        RunTrace { steps: steps.to_vec(), history, model }
    }

    /// Serves the state that the disk may hold, and checks it.
    pub fn check(&self, run: &RunTrace, point: usize, fate: Fate, state: &DiskState) {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("store");
        std::fs::create_dir(&store).unwrap();
        state.write_to(&store).unwrap();
        let recording = Recording::begin(&store).unwrap();
        let done = CompletedActions::at(&run.history, point);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let running = Running::start(&store, &directory.path().join("sockets"));
            let found: BTreeMap<Path, FoundContent> =
                Path::ALL.into_iter().filter_map(|path| Some((path, look(&running, path)?))).collect();
            if let Some(objection) = run.model.objection(&found, done) {
                panic!("{done:?}: {objection}");
            }
            let mut written = HashSet::new();
            for (path, found) in found.iter().filter(|(_, found)| written.insert(found.inode)) {
                append(&running, *path, &found.content);
            }
            running.stop(true);
            let report = varve_admin::fsck::check(&VolumeDir::new(&store), &mut |_| {}).unwrap();
            let findings: Vec<String> = report.findings.iter().map(|finding| finding.to_string()).collect();
            assert!(report.is_sound(), "fsck: {findings:#?}");
        }));
        drop(recording);
        if let Err(panic) = checked {
            let kept = directory.path().join("failed");
            std::fs::create_dir(&kept).unwrap();
            state.write_to(&kept).unwrap();
            let directory = directory.keep();
            eprintln!(
                "steps {:?}, power lost at point {point} of {}, {fate:?}\nthe disk is in {}\nlast changes\n{}",
                run.steps,
                run.history.points(),
                directory.join("failed").display(),
                run.history.describe(point, 30),
            );
            std::panic::resume_unwind(panic);
        }
    }
}

/// The file of a name, read to its end, which must be where stat reports it.
fn look(running: &Running, path: Path) -> Option<FoundContent> {
    let text = path.text().as_bytes();
    let node = match block_on(running.library.stat(text)) {
        Ok(node) => node,
        Err(failure) if failure.errno == Errno::ENOENT => return None,
        Err(failure) => panic!("{path:?}: {failure}"),
    };
    let content = block_on(running.library.read_file(text)).unwrap();
    assert_eq!(node.attributes.size, content.len() as u64, "{path:?}: what stat says, and what is read");
    Some(FoundContent { inode: node.inode, content })
}

/// Appends bytes to the file, and checks that they are there afterwards.
fn append(running: &Running, path: Path, content: &[u8]) {
    let handle = running.open(path, OpenFlags { append: true, ..OpenFlags::READ_WRITE });
    assert_eq!(block_on(running.fs().write(handle, 0, b"more")).unwrap(), 4);
    running.close(handle);
    let read = block_on(running.library.read_file(path.text().as_bytes())).unwrap();
    assert!(read.strip_suffix(b"more") == Some(content), "{path:?} is not what it was and 4 bytes more");
}

/// Runs the steps, and records them in the history and in the model.
struct Actor<'a> {
    running: &'a Running,
    recording: &'a Recording,
    model: FileModel,
    /// Open descriptors, by file.
    held: HashMap<usize, Handle>,
    /// Counts writes, so that each writes different bytes.
    writes: usize,
}

impl Actor<'_> {
    /// Runs one action; `learn` updates the model.
    fn act(&mut self, work: impl FnOnce(&Running), learn: impl FnOnce(&mut FileModel)) {
        self.recording.mark(BEGUN + self.model.next() as u64);
        work(self.running);
        learn(&mut self.model);
    }

    /// An action after which all earlier actions are on disk, as far as rows of `file` lead.
    fn sync(&mut self, file: Option<usize>, work: impl FnOnce(&Running)) {
        let action = self.model.next() as u64;
        self.act(work, |model| model.sync(file));
        self.recording.mark(SYNCED + action);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(path, offset, length) => self.write(path, Some(offset), length),
            Step::Append(path, length) => self.write(path, None, length),
            Step::Hold(path, offset, length) => self.hold(path, offset, length),
            Step::Drop(path) => {
                let held = self.model.file_at(path).and_then(|file| self.held.remove(&file));
                if let Some(handle) = held {
                    self.act(|running| running.close(handle), FileModel::nothing);
                }
            }
            Step::Cut(path, size) => self.cut(path, size),
            Step::Empty(path) => {
                let Some(file) = self.model.file_at(path) else { return };
                let flags = OpenFlags { mode: OpenMode::Write, truncate: true, ..OpenFlags::READ };
                self.act(
                    |running| running.close(running.open(path, flags)),
                    |model| model.set_content(file, Vec::new()),
                );
            }
            Step::Fsync(path) => {
                let Some(file) = self.model.file_at(path) else { return };
                let held = self.held.get(&file).copied();
                self.sync(Some(file), |running| {
                    let handle = held.unwrap_or_else(|| running.open(path, OpenFlags::READ));
                    block_on(running.fs().fsync(handle, false)).unwrap();
                    if held.is_none() {
                        running.close(handle);
                    }
                });
            }
            Step::Rename(from, to) => self.rename(from, to),
            Step::Link(from, to) => {
                let (Some(file), None) = (self.model.file_at(from), self.model.file_at(to)) else { return };
                let link = |running: &Running| {
                    block_on(running.library.link(from.text().as_bytes(), to.text().as_bytes())).unwrap();
                };
                self.act(link, |model| model.rename(|names| _ = names.insert(to, file)));
            }
            Step::Remove(path) => {
                if self.model.file_at(path).is_some() {
                    let remove = |running: &Running| block_on(running.library.unlink(path.text().as_bytes())).unwrap();
                    self.act(remove, |model| model.rename(|names| _ = names.remove(&path)));
                }
            }
            Step::Sync => self.sync(None, |running| block_on(running.fs().sync()).unwrap()),
            Step::RecordSize => self.act(|running| block_on(running.fs().record_all_sizes()), FileModel::nothing),
        }
    }

    /// The file of that name; creates an empty one if there is none.
    fn file(&mut self, path: Path) -> usize {
        if let Some(file) = self.model.file_at(path) {
            return file;
        }
        let create = |running: &Running| block_on(running.library.create(path.text().as_bytes(), MODE)).unwrap();
        self.act(create, |model| model.create(path));
        self.model.file_at(path).expect("it was just made")
    }

    /// The bytes of a write, and the content after it.
    fn written(&mut self, file: usize, offset: usize, length: usize) -> (Vec<u8>, Vec<u8>) {
        self.writes += 1;
        // Never zero, because a hole reads as zero.
        let bytes: Vec<u8> = (0..length).map(|at| 1 + ((self.writes * 41 + at / 100) % 255) as u8).collect();
        let mut content = self.model.content(file).to_vec();
        content.resize(content.len().max(offset + length), 0);
        content[offset..offset + length].copy_from_slice(&bytes);
        (bytes, content)
    }

    /// `offset`: `None` for the end.
    fn write(&mut self, path: Path, offset: Option<usize>, length: usize) {
        let file = self.file(path);
        let append = offset.is_none();
        let offset = offset.unwrap_or_else(|| self.model.content(file).len());
        let (bytes, content) = self.written(file, offset, length);
        let write = |running: &Running| {
            let handle = running.open(path, OpenFlags { append, mode: OpenMode::Write, ..OpenFlags::READ });
            assert_eq!(block_on(running.fs().write(handle, offset as u64, &bytes)).unwrap(), bytes.len());
            running.close(handle);
        };
        self.act(write, |model| model.set_content(file, content));
    }

    fn hold(&mut self, path: Path, offset: usize, length: usize) {
        let file = self.file(path);
        let running = self.running;
        let handle = *self.held.entry(file).or_insert_with(|| running.open(path, OpenFlags::READ_WRITE));
        let (bytes, content) = self.written(file, offset, length);
        let write = |running: &Running| {
            assert_eq!(block_on(running.fs().write(handle, offset as u64, &bytes)).unwrap(), bytes.len());
            block_on(running.fs().flush(handle)).unwrap();
        };
        self.act(write, |model| model.set_content(file, content));
    }

    fn cut(&mut self, path: Path, size: usize) {
        let Some(file) = self.model.file_at(path) else { return };
        let mut content = self.model.content(file).to_vec();
        content.resize(size, 0);
        let cut = |running: &Running| {
            let set = SetAttributes { size: Some(size as u64), ..SetAttributes::default() };
            running
                .with(path, |fs, inode| block_on(fs.set_attributes(&Credentials::root(), inode, set, None)).unwrap());
        };
        self.act(cut, |model| model.set_content(file, content));
    }

    fn rename(&mut self, from: Path, to: Path) {
        // rename(2) between two names of one file does nothing.
        let Some(file) = self.model.file_at(from).filter(|file| self.model.file_at(to) != Some(*file)) else { return };
        let rename = |running: &Running| {
            let (from, to) = (from.text().as_bytes(), to.text().as_bytes());
            block_on(running.library.rename(from, to, RenameFlags::Replace)).unwrap();
        };
        self.act(rename, |model| {
            model.rename(|names| {
                names.remove(&from);
                names.insert(to, file);
            });
        });
    }
}
