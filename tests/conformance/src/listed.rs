//! A suite's list of cases, compared with its files: a case that is not in the list would never run.

/// `files` are the names and sources of the suite's files, whose public async functions are the cases.
pub(crate) fn assert_every_case_is_listed(suite: &str, files: &[(&str, &str)]) {
    for (file, source) in files {
        let listed = suite.split_once(&format!("mod {file} {{")).expect(file).1;
        let listed = listed.split_once('}').expect(file).0;
        let listed: Vec<_> = listed.split(',').map(str::trim).filter(|case| !case.is_empty()).collect();
        let cases = source.lines().filter_map(|line| line.strip_prefix("pub async fn "));
        let cases: Vec<_> = cases.filter_map(|line| Some(line.split_once('(')?.0)).collect();
        assert_eq!(listed, cases, "{file}: the list in suite.rs has every case, in the file's order");
    }
}
