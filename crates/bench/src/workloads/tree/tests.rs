use super::*;

fn config(directories: &[&std::path::Path]) -> TreeConfig {
    TreeConfig {
        directories: directories.iter().map(|directory| (*directory).to_owned()).collect(),
        names: 300,
        files: 250,
        repeat: 2,
        programs: Vec::new(),
        progress: false,
        arguments: vec!["varve".to_owned()],
    }
}

#[test]
fn each_program_is_timed_in_each_directory() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let installed = TreeProgram::ALL.into_iter().filter(|program| program.is_installed());
    // Python takes seconds each time.
    let programs: Vec<TreeProgram> = installed.filter(|program| program.program() != "python3").collect();
    let expected = programs.iter().map(|program| program.name());
    let mut config = config(&[first.path(), second.path()]);
    config.programs = programs.clone();
    let report = run(&config).unwrap();
    let names: Vec<&str> = report.results.iter().map(|result| result.workload.as_str()).collect();
    assert_eq!(names, expected.collect::<Vec<_>>());
    for result in &report.results {
        assert_eq!(result.via.len(), 2);
        assert!(result.via.iter().all(|sample| sample.seconds.samples.len() == 2 && sample.seconds.min > 0.0));
        assert_eq!(result.via[0].ratio.median, 1.0);
    }
    let read: TreeReport = serde_json::from_str(&report.to_json().unwrap()).unwrap();
    let names_read: Vec<&str> = read.results.iter().map(|result| result.workload.as_str()).collect();
    assert_eq!(names_read, names);
    assert!(report.to_text().contains("cp-al"));
    for directory in [first, second] {
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "the run removes its files");
    }
}

#[test]
fn python_environment_and_import_storm_are_timed() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&[directory.path()]);
    config.programs = vec![TreeProgram::PythonEnvironment, TreeProgram::ImportStorm];
    config.repeat = 1;
    let report = run(&config).unwrap();
    assert!(report.results.iter().all(|result| result.via[0].seconds.min > 0.0));
    assert_eq!(report.results[1].command, "python3 -I -c SCRIPT");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// Promise: Python takes no module from the measured directory.
#[test]
fn python_ignores_modules_of_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    for module in ["venv", "compileall", "subprocess"] {
        std::fs::write(directory.path().join(format!("{module}.py")), "raise SystemExit(3)").unwrap();
    }
    for program in [TreeProgram::PythonEnvironment, TreeProgram::ImportStorm] {
        assert!(program.run(directory.path()).unwrap().is_some(), "{program}");
    }
}

#[test]
fn root_refuses_the_directory_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it needs root to give a directory to another user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(directory.path(), Some(65_534), None).unwrap();
    let refused = run(&config(&[directory.path()])).unwrap_err().to_string();
    assert!(refused.contains("run it as the user who owns the directory"), "{refused}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn failed_program_is_named_and_files_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let mut tree = Tree::open(directory.path()).unwrap();
    let progress = ProgressDisplay::new(false, 0);
    tree.fill(NAMES, 3, &progress).unwrap();
    let config = config(&[directory.path()]);
    let failed = tree.time(TreeProgram::Tar, &config).unwrap_err().to_string();
    assert!(failed.contains("cannot run tar: exit status: 2: tar: files"), "{failed}");
    let short = tree.time(TreeProgram::ListNames, &config).unwrap_err().to_string();
    assert!(short.contains("ls-f printed 5 lines"), "{short}");
    tree.remove(Ok(())).unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn senseless_configurations_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let refused = |change: fn(&mut TreeConfig)| {
        let mut config = config(&[at]);
        change(&mut config);
        match run(&config) {
            Err(Error::Usage(text)) => text,
            other => panic!("{other:?}"),
        }
    };
    assert!(refused(|config| config.directories.clear()).contains("at least one directory"));
    assert!(refused(|config| config.directories.push(config.directories[0].clone())).contains("twice"));
    assert!(refused(|config| config.repeat = 0).contains("repeats"));
    assert!(refused(|config| config.names = 0).contains("names and files"));
    assert!(refused(|config| config.files = TREE_FILES_MAX + 1).contains("names and files"));
    assert!(refused(|config| config.programs = vec![TreeProgram::Tar; 2]).contains("tar is given twice"));
    assert!("ls".parse::<TreeProgram>().unwrap_err().contains("ls-f, ls-f-changed, ls-l"));
}
