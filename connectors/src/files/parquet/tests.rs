use std::collections::BTreeMap;
use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;
use std::path::Path;
use std::sync::Arc;

fn column(name: &str, kind: Type) -> Column {
    Column { name: name.to_owned(), kind, optional: false }
}

fn optional(name: &str, kind: Type) -> Column {
    Column { optional: true, ..column(name, kind) }
}

fn schema(key: &[&str], version: Option<&str>) -> Arc<Schema> {
    let columns = vec![
        column("chat", Type::String),
        column("n", Type::Int64),
        optional("share", Type::Double),
        optional("open", Type::Bool),
        optional("at", Type::Timestamp),
    ];
    let key: Vec<String> = key.iter().map(|name| (*name).to_owned()).collect();
    Arc::new(Schema::new(columns, &key, version).unwrap())
}

fn row(chat: &str, n: i64) -> Row {
    let share = (n % 3 != 0).then(|| Cell::Double(n as f64 / 2.0));
    let at = (n % 2 == 0).then_some(Cell::Int(1_700_000_000_000 + n));
    vec![Some(Cell::Text(chat.into())), Some(Cell::Int(n)), share, Some(Cell::Bool(n > 5)), at]
}

fn rows_of(folder: &Path, schema: &Arc<Schema>) -> Vec<Row> {
    let mut rows = Vec::new();
    walk(folder, schema, &mut |row| rows.push(row)).unwrap();
    rows.sort_by_key(|row| format!("{row:?}"));
    rows
}

fn files(folder: &Path) -> Vec<String> {
    let listed = std::fs::read_dir(folder.join("current")).unwrap();
    let mut names: Vec<_> = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_written_reads_back_with_its_note() {
    let folder = tempfile::tempdir().unwrap();
    let schema = schema(&[], None);
    let mut table = Table::open(folder.path(), Arc::clone(&schema)).unwrap();
    assert_eq!(table.note(), b"");
    table.write(vec![row("a", 1), row("b", 2)], b"one".to_vec()).unwrap();
    table.write(vec![row("a", 1), row("c", 3)], b"two".to_vec()).unwrap();
    let expected = [row("a", 1), row("a", 1), row("b", 2), row("c", 3)];
    assert_eq!(rows_of(folder.path(), &schema), expected, "without a key every row stays");
    assert_eq!(Table::open(folder.path(), schema).unwrap().note(), b"two");
}

#[test]
fn a_later_row_of_a_key_replaces_the_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let schema = schema(&["chat"], None);
    let mut table = Table::open(folder.path(), Arc::clone(&schema)).unwrap();
    table.write(vec![row("a", 1), row("b", 2), row("a", 3)], Vec::new()).unwrap();
    assert_eq!(rows_of(folder.path(), &schema), [row("a", 3), row("b", 2)]);
    let before = files(folder.path());
    table.write(vec![row("c", 9)], Vec::new()).unwrap();
    assert!(before.iter().all(|file| files(folder.path()).contains(file)), "what stays is not written again");
    table.write(vec![row("b", 1)], Vec::new()).unwrap();
    assert_eq!(rows_of(folder.path(), &schema), [row("a", 3), row("b", 1), row("c", 9)]);
    // the file that held only this row goes, after a restart too
    let mut table = Table::open(folder.path(), Arc::clone(&schema)).unwrap();
    table.write(vec![row("c", 1)], Vec::new()).unwrap();
    assert_eq!(rows_of(folder.path(), &schema), [row("a", 3), row("b", 1), row("c", 1)]);
}

#[test]
fn the_greater_version_wins_whatever_came_later() {
    let folder = tempfile::tempdir().unwrap();
    let schema = schema(&["chat"], Some("n"));
    let mut table = Table::open(folder.path(), Arc::clone(&schema)).unwrap();
    table.write(vec![row("a", 5), row("a", 4), row("b", 1)], Vec::new()).unwrap();
    table.write(vec![row("a", 3), row("b", 2)], Vec::new()).unwrap();
    assert_eq!(rows_of(folder.path(), &schema), [row("a", 5), row("b", 2)]);
}

#[test]
fn many_small_files_become_few_and_nothing_else_changes() {
    let folder = tempfile::tempdir().unwrap();
    let schema = schema(&[], None);
    let mut table = Table::open(folder.path(), Arc::clone(&schema)).unwrap();
    for n in 0..100 {
        table.write(vec![row("a", n)], b"note".to_vec()).unwrap();
        table.tidy().unwrap();
    }
    assert!(files(folder.path()).len() < 20, "{:?}", files(folder.path()));
    assert_eq!(rows_of(folder.path(), &schema).len(), 100);
    assert_eq!(table.note(), b"note");
    let snapshots = std::fs::read_dir(folder.path()).unwrap().count();
    assert!(snapshots <= 6, "old ones are removed: {snapshots}");
}

#[test]
fn rows_fill_more_than_one_group() {
    let folder = tempfile::tempdir().unwrap();
    let schema = schema(&[], None);
    let mut table = Table::open(folder.path(), Arc::clone(&schema)).unwrap();
    table.write((0..150_000).map(|n| row("a", n)).collect(), Vec::new()).unwrap();
    let mut sum = 0;
    walk(folder.path(), &schema, &mut |row| {
        let Some(Cell::Int(n)) = row[1] else { panic!("{row:?}") };
        assert_eq!(row[2].is_some(), n % 3 != 0);
        sum += n;
    })
    .unwrap();
    assert_eq!(sum, 149_999 * 150_000 / 2);
}

#[test]
fn a_writer_that_died_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let schema = schema(&[], None);
    let mut table = Table::open(folder.path(), Arc::clone(&schema)).unwrap();
    table.write(vec![row("a", 1)], b"one".to_vec()).unwrap();
    // the next snapshot was begun and its files written, but the link was not replaced
    let unfinished = folder.path().join("snapshot-0000000002");
    std::fs::create_dir(&unfinished).unwrap();
    std::fs::write(unfinished.join("part-0000000002-00000.parquet"), "half").unwrap();
    symlink("snapshot-0000000002", folder.path().join("current.tmp")).unwrap();
    let mut table = Table::open(folder.path(), Arc::clone(&schema)).unwrap();
    assert!(!unfinished.exists());
    assert_eq!(table.note(), b"one");
    table.write(vec![row("b", 2)], b"two".to_vec()).unwrap();
    assert_eq!(rows_of(folder.path(), &schema), [row("a", 1), row("b", 2)]);
}

#[test]
fn a_column_can_be_added_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let with = |columns| Arc::new(Schema::new(columns, &[], None).unwrap());
    let first = with(vec![column("a", Type::Int64)]);
    Table::open(folder.path(), first).unwrap().write(vec![vec![Some(Cell::Int(1))]], Vec::new()).unwrap();
    let more = with(vec![optional("b", Type::String), column("a", Type::Int64)]);
    let mut table = Table::open(folder.path(), Arc::clone(&more)).unwrap();
    table.write(vec![vec![Some(Cell::Text("x".into())), Some(Cell::Int(2))]], Vec::new()).unwrap();
    assert_eq!(rows_of(folder.path(), &more)[0], [None, Some(Cell::Int(1))]);
    for (columns, name) in [
        (vec![column("a", Type::Timestamp)], "a"),
        (vec![column("a", Type::Int64), column("c", Type::Int64)], "c"),
        (vec![column("b", Type::String), column("a", Type::Int64)], "b"),
    ] {
        let error = Table::open(folder.path(), with(columns)).err().unwrap().to_string();
        assert!(error.contains(&format!("`{name}`")) && error.contains("rebuild"), "{error}");
    }
}

#[test]
fn damage_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let schema = schema(&[], None);
    Table::open(folder.path(), Arc::clone(&schema)).unwrap().write(vec![row("a", 1)], Vec::new()).unwrap();
    let file = folder.path().join("current").join(&files(folder.path())[1]);
    std::fs::write(&file, "PAR1 nonsense").unwrap();
    let error = Table::open(folder.path(), Arc::clone(&schema)).err().unwrap().to_string();
    assert!(error.contains("is damaged") && error.contains("part-0000000001"), "{error}");
    std::fs::remove_file(folder.path().join("current")).unwrap();
    symlink("/etc", folder.path().join("current")).unwrap();
    let error = Table::open(folder.path(), schema).err().unwrap().to_string();
    assert!(error.contains("/etc") && error.contains("no snapshot"), "{error}");
}

#[test]
fn columns_that_make_no_table_are_refused() {
    let refused = |columns: Vec<Column>, key: &[&str], version| {
        let key: Vec<String> = key.iter().map(|name| (*name).to_owned()).collect();
        Schema::new(columns, &key, version).unwrap_err()
    };
    let (a, b) = (|| column("a", Type::String), || optional("b", Type::Int64));
    assert_eq!(refused(vec![], &[], None), SchemaError::Empty);
    assert_eq!(refused(vec![a(), a()], &[], None), SchemaError::SameName("a".into()));
    assert_eq!(refused(vec![column("a b", Type::Bool)], &[], None), SchemaError::Name("a b".into()));
    assert_eq!(refused(vec![a()], &["x"], None), SchemaError::Unknown("x".into()));
    assert_eq!(refused(vec![a(), b()], &["b"], None), SchemaError::OptionalKey("b".into()));
    assert_eq!(refused(vec![a()], &[], Some("a")), SchemaError::Version("a".into()));
    assert_eq!(refused(vec![a(), b()], &["a"], Some("b")), SchemaError::Version("b".into()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is written in whatever batches, over restarts and merges, the table holds what a map would.
    #[test]
    fn a_table_is_what_a_map_would_be(
        batches in prop::collection::vec((prop::collection::vec((0u8..12, 0i64..50), 0..12), any::<bool>()), 1..20),
        by_version in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let schema = schema(&["chat"], by_version.then_some("n"));
        let mut table = Table::open(folder.path(), Arc::clone(&schema)).unwrap();
        let mut model: BTreeMap<String, i64> = BTreeMap::new();
        for (batch, restart) in batches {
            if restart {
                table = Table::open(folder.path(), Arc::clone(&schema)).unwrap();
            }
            for (chat, n) in &batch {
                let kept = model.entry(chat.to_string()).or_insert(*n);
                if !by_version || n >= kept {
                    *kept = *n;
                }
            }
            table.write(batch.iter().map(|(chat, n)| row(&chat.to_string(), *n)).collect(), Vec::new()).unwrap();
            table.tidy().unwrap();
            let mut expected: Vec<Row> = model.iter().map(|(chat, n)| row(chat, *n)).collect();
            expected.sort_by_key(|row| format!("{row:?}"));
            prop_assert_eq!(rows_of(folder.path(), &schema), expected);
        }
    }
}
