//! Files for a beamline: metadata of a real stream2 sender and of the service, and readers of the field.

use super::*;

const RUN_SETUP: &str = "run `make setup` first";

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).expect("the workspace")
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/detector_service").join(name)
}

fn python() -> Command {
    Command::new(workspace().join("venv/bin/python"))
}

fn succeeded(command: &mut Command) -> String {
    let output = command.output().expect(RUN_SETUP);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

const METADATA: &str = r#"
[values]
beamline = "ID00"
stable = true
offsets = [1.5, 2.5]

[nxmx]
instrument = "beamline 0"
source = "ring"
sample = "crystal"
total_flux = 1e12
goniometer = [{ name = "omega", vector = [-1, 0, 0] }, { name = "kappa", vector = [0.5, 0.5, 0] }]
"#;

/// Promise: everything that a DECTRIS detector sends reaches the file, with the metadata of the service. NXmx's validator
/// finds no error. Images from number 1, big-endian images and images that the end overtakes are kept.
#[test]
fn stream2_metadata_reach_the_file() {
    let directory = common::scratch();
    let mut sender =
        python().arg(script("push_series.py")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect(RUN_SETUP);
    let mut port = String::new();
    BufReader::new(sender.stdout.take().expect("piped")).read_line(&mut port).expect("a port");
    let metadata = directory.path().join("beamline.json");
    let mut json: Value =
        toml::from_str::<toml::Value>(METADATA).map(|table| serde_json::to_value(table).expect("JSON")).expect("TOML");
    json["values"]["huge"] = json!(9_223_372_036_854_775_813_u64);
    std::fs::write(&metadata, json.to_string()).expect("written");
    let root = directory.path().join("data");
    std::fs::create_dir(&root).expect("made");
    let mut command = varve();
    command.args(Service::words(&root, "127.0.0.1:0", "127.0.0.1:0"));
    command.args(["--stream2", &format!("tcp://127.0.0.1:{}", port.trim())]);
    command.arg("--metadata").arg(&metadata);
    let service = Service::of(&root, command);
    until("the end of the series", || {
        let listed = service.record(&["status"]).1;
        listed["runs"].as_array().is_some_and(|runs| runs.iter().any(|run| run["state"] == "finished"))
    });
    drop(sender.stdin.take());
    sender.wait().expect("ended");
    let (_, status) = service.record(&["status", "series-77"]);
    assert_eq!((&status["finished"]["received"], &status["finished"]["missing"]), (&json!(5), &json!(0)), "{status}");
    service.process.terminate();
    let file = root.join("series_000077.h5");
    assert_eq!(succeeded(python().arg(script("check_series.py")).arg(&file)).lines().last(), Some("ok"));
}

/// Promise: a C program finds what XDS's plug-ins look for, by the same paths and types.
#[test]
fn xds_plugins_find_their_paths() {
    let directory = common::scratch();
    let reader = directory.path().join("xds_reader");
    let flags = succeeded(Command::new("pkg-config").args(["--cflags", "--libs", "hdf5-serial"]));
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_DEFAULT_SOURCE", "-o"]).arg(&reader);
    succeeded(compile.arg(script("xds_reader.c")).args(flags.split_whitespace()));
    let metadata = directory.path().join("beamline.toml");
    let pixels = "pixel_size = [1.72e-4, 1.72e-4]\n";
    let mask = "pixel_mask = [{ value = 1, offset = [2, 0], shape = [3, 40] }]\n";
    for (name, region, sum) in [("masked", mask, 120), ("plain", "", 0)] {
        std::fs::write(&metadata, format!("[nxmx]\n{pixels}{region}")).expect("written");
        let file = directory.path().join(name);
        let mut simulate = varve();
        simulate.args(["detector", "simulate", "--model", "40x30xu16", "--frames", "7", "--metadata"]);
        succeeded(simulate.arg(&metadata).arg("--out").arg(&file));
        assert_eq!(succeeded(Command::new(&reader).arg(&file)).trim(), format!("30 40 7 {sum}"), "{name}");
    }
}

/// Arrays of a run's metadata travel with its start, from npy, TIFF and HDF5 files.
#[test]
fn run_metadata_have_arrays_from_files() {
    let directory = common::scratch();
    let files = directory.path().join("files");
    std::fs::create_dir(&files).expect("made");
    let make = "import sys, numpy, h5py\n\
        mask = numpy.zeros((48, 48), dtype='u1'); mask[5, 6] = 3\n\
        numpy.save(sys.argv[1] + '/mask.npy', mask)\n\
        with h5py.File(sys.argv[1] + '/flat.h5', 'w') as file:\n    file['deep/flat'] = numpy.full((48, 48), 0.25, dtype='f4')\n";
    succeeded(python().args(["-c", make]).arg(&files));
    let text = "[arrays]\npixel_mask = \"mask.npy\"\nflatfield = \"flat.h5:/deep/flat\"\n";
    std::fs::write(files.join("run.toml"), text).expect("written");
    let root = directory.path().join("data");
    std::fs::create_dir(&root).expect("made");
    let service = Service::start(&root);
    let metadata = files.join("run.toml");
    let words = ["start", "one", "one.h5", "--frame", "48x48", "--layout", "nexus", "--metadata"];
    let (code, status) = service.record(&[&words[..], &[metadata.to_str().expect("text")]].concat());
    assert_eq!(code, 0, "{status}");
    assert_eq!(service.record(&["stop", "one"]).0, 0);
    service.process.terminate();
    let check = "import sys, h5py\n\
        with h5py.File(sys.argv[1]) as file:\n    detector = file['entry/instrument/detector']\n    \
        assert detector['pixel_mask'][5, 6] == 3 and detector['pixel_mask'].dtype == '<u4'\n    \
        assert detector['pixel_mask'][...].sum() == 3 and (detector['flatfield'][...] == 0.25).all()\n";
    succeeded(python().args(["-c", check]).arg(root.join("one.h5")));
}

/// An Eiger's master file, whose frames lie in other files behind external links, compressed by bitshuffle+LZ4.
#[test]
fn eiger_masters_with_external_links_are_replayed() {
    let directory = common::scratch();
    let make = "import sys, numpy, h5py, hdf5plugin\n\
        with h5py.File(sys.argv[1] + '/run_master.h5', 'w') as master:\n    data = master.create_group('entry/data')\n    \
        for part in (1, 2):\n        name = f'run_data_{part:06}.h5'\n        \
        frames = numpy.full((3, 30, 40), part, dtype='u4')\n        \
        with h5py.File(sys.argv[1] + '/' + name, 'w') as file:\n            \
        file.create_dataset('entry/data/data', data=frames, chunks=(1, 30, 40), **hdf5plugin.Bitshuffle())\n        \
        data[f'data_{part:06}'] = h5py.ExternalLink(name, '/entry/data/data')\n";
    succeeded(python().args(["-c", make]).arg(directory.path()));
    let (master, out) = (directory.path().join("run_master.h5"), directory.path().join("again.h5"));
    let mut replay = varve();
    replay.args(["--json", "detector", "simulate", "--replay"]).arg(&master).arg("--out").arg(&out);
    let reported: Value = serde_json::from_str(&succeeded(&mut replay)).expect("JSON");
    assert_eq!((&reported["frames"], &reported["missing"]), (&json!(6), &json!(0)), "{reported}");
    let check = "import sys, h5py, hdf5plugin\n\
        with h5py.File(sys.argv[1]) as file:\n    data = file['entry/data/data']\n    \
        assert (data[0] == 1).all() and (data[5] == 2).all() and data.shape == (6, 30, 40)\n";
    succeeded(python().args(["-c", check]).arg(&out));
    std::fs::remove_file(directory.path().join("run_data_000001.h5")).expect("removed");
    let output = varve().args(["detector", "simulate", "--replay"]).arg(&master).arg("--out").arg(&out).output();
    let printed = String::from_utf8_lossy(&output.expect("varve runs").stderr).into_owned();
    assert!(printed.contains("data_000001"), "{printed}");
}

/// A detector that counts on from run to run: its numbers are kept in acknowledgements, status and watch, which shows the
/// run before its first frame. A lower number is refused.
#[test]
fn runs_begin_with_a_large_frame_number() {
    const FIRST: u64 = 3_000_000_000_000;
    let directory = common::scratch();
    let service = Service::start(directory.path());
    let mut request = start("train");
    request.description.first_frame = FIRST;
    let client = Client::connect(options(&service.listen, &request)).expect("in");
    let mut watch = varve();
    watch.args(["--json", "record", "watch", "train", "--http", &service.http]);
    let mut watch = JsonProcess::of(watch);
    let before = watch.reported();
    assert_eq!((&before["state"], &before["latest_durable"]), (&json!("running"), &Value::Null), "{before}");
    for number in 0..3 {
        client.send(Outgoing { number: FIRST + number, ..frame(number) }, WAIT).expect("sent");
    }
    client.settle(WAIT).expect("acknowledged");
    assert!(client.acknowledged(AckLevel::Durable).covers(&(FIRST..FIRST + 3)));
    client.send(frame(7), WAIT).expect("sent");
    until("the notice", || {
        client.notices().iter().any(|notice| notice.frame == 7 && notice.text.contains("3000000000000"))
    });
    assert_eq!(service.record(&["status", "train"]).1["latest_durable"], FIRST + 2);
    assert!(watch.reported()["latest_durable"].as_u64() >= Some(FIRST));
    assert_eq!(service.record(&["stop", "train"]).1["finished"]["received"], 3);
    service.process.terminate();
}

/// Frames that a simulator with a rate cannot deliver appear as dropped in the status and the metrics of the service.
#[test]
fn frames_dropped_by_the_simulator_are_counted() {
    let directory = common::scratch();
    let service = Service::start(directory.path());
    // A thousand times faster than any machine: nearly all frames are late after the first second.
    let mut simulate = varve();
    simulate.args([
        "--json",
        "detector",
        "simulate",
        "--model",
        "1024x1024xu16",
        "--frames",
        "3000",
        "--rate",
        "1000000",
    ]);
    simulate.args(["--to", &format!("tcp://{}", service.listen), "--run", "fast", "--file", "fast.h5"]);
    let output = simulate.output().expect("varve runs");
    let reported: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let dropped = reported["dropped"].as_u64().expect("a count");
    assert!(dropped > 0, "{reported}");
    assert_eq!(service.record(&["status", "fast"]).1["dropped_frames"], dropped, "{reported}");
    service.process.terminate();
}

#[test]
fn python_client_names_what_frames_cannot_have() {
    let check = "import sys\nsys.path.insert(0, sys.argv[1])\nimport numpy, varve_detector\n\
        client = object.__new__(varve_detector.Client)\nclient._shape = client._element = None\n\
        masked = numpy.ma.masked_array(numpy.zeros((2, 2), 'u2'), mask=[[1, 0], [0, 0]])\n\
        for frame, words in ((masked, 'frame.filled'), (numpy.zeros((2, 2), 'M8[s]'), \"astype('int64')\")):\n    \
        try:\n        client._understand(frame, None, None)\n    \
        except ValueError as error:\n        assert words in str(error), error\n    \
        else:\n        raise AssertionError(words)\n\
        assert client._understand(numpy.ma.masked_array(numpy.zeros((2, 2), 'u2')), None, None)[2] == 'u16'\n";
    succeeded(python().args(["-c", check]).arg(workspace().join("clients/python")));
}
